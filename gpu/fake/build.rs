//! The soname makes the loaded copy answer to the first name that cudarc tries; `nodelete` keeps it
//! in place where a probe opens and closes it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
