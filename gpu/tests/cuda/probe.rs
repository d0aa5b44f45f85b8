//! What a probe says where there is no driver, or not enough of one. The driver that a process has
//! found stays, so other drivers are probed in other processes: the loader's path leads to them.

use crate::support::{Fake, again, folder, library_path};
use kvtide_gpu::cuda::probe;
use std::path::Path;

/// Prints what it finds; the tests below start it.
#[test]
fn this_process_probes() {
    let Some(answer) = std::env::var_os("KVTIDE_PROBE_ANSWER") else { return };
    let text = match probe() {
        Ok(driver) => format!(
            "driver {}, batch: {}, cards: {}",
            driver.version(),
            driver.has_batch(),
            driver.cards().len()
        ),
        Err(absent) => absent.to_string(),
    };
    std::fs::write(answer, text).expect("a place for the answer");
}

/// Probes in a process whose loader looks into that folder first.
fn probed(libraries: &Path, settings: &[(&str, &str)]) -> String {
    let answer = libraries.join("answer");
    let mut command = again("probe::this_process_probes", libraries);
    command.env("LD_LIBRARY_PATH", libraries).env("KVTIDE_PROBE_ANSWER", &answer);
    let output = command.envs(settings.iter().copied()).output().expect("this program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read_to_string(answer).expect("an answer")
}

/// A folder with a driver that lacks one symbol: its name is changed wherever the file has it.
fn folder_without(symbol: &str) -> std::path::PathBuf {
    let path = folder(symbol);
    let mut library = std::fs::read(library_path()).expect("the fake driver");
    let name = [b"\0", symbol.as_bytes(), b"\0"].concat();
    let mut places = Vec::new();
    for at in 0..library.len() - name.len() {
        if library[at..].starts_with(&name) {
            places.push(at + 1);
        }
    }
    assert!(!places.is_empty(), "{symbol} is a symbol");
    places.into_iter().for_each(|at| library[at] = b'C');
    std::fs::write(path.join("libcuda.so.1"), library).expect("a copy");
    path
}

#[test]
fn reasons_are_sentences_and_nothing_panics() {
    let path = folder("probe");
    std::fs::create_dir(path.join("empty")).expect("a folder");
    let none = probed(&path.join("empty"), &[]);
    assert!(none.starts_with("no CUDA driver"), "unless this machine has one: {none}");
    std::os::unix::fs::symlink(library_path(), path.join("libcuda.so.1")).expect("a link");
    let cases: [(&[(&str, &str)], &str); 4] = [
        (&[], "driver 12080, batch: true, cards: 1"),
        (&[("FAKECUDA_DEVICES", "3")], "driver 12080, batch: true, cards: 3"),
        (&[("FAKECUDA_DEVICES", "0")], "the CUDA driver shows no card"),
        (&[("FAKECUDA_VERSION", "11030")], "the CUDA driver is too old: it serves 11.3"),
    ];
    for (settings, expected) in cases {
        let found = probed(&path, settings);
        assert!(found.starts_with(expected), "{found}");
    }
    std::fs::remove_dir_all(path).expect("made above");
}

#[test]
fn a_missing_symbol_is_named_if_it_is_needed_and_else_done_without() {
    let path = folder_without("cuMemcpyBatchAsync");
    assert_eq!(probed(&path, &[]), "driver 12080, batch: false, cards: 1");
    // A whole exchange with an engine, on that driver.
    let mut command = again("transfer::what_is_stored_comes_back_and_neighbours_stay", &path);
    let output = command.env("KVTIDE_FAKE_LIBRARY", path.join("libcuda.so.1")).output();
    let output = output.expect("this program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    std::fs::remove_dir_all(path).expect("made above");
    let path = folder_without("cuLaunchHostFunc");
    assert_eq!(probed(&path, &[]), "the CUDA driver lacks cuLaunchHostFunc, which is needed");
    let old = probed(&path, &[("FAKECUDA_VERSION", "9020")]);
    assert!(old.starts_with("the CUDA driver is too old: it serves 9.2"), "{old}");
    std::fs::remove_dir_all(path).expect("made above");
}

#[test]
fn a_driver_that_does_not_start_says_what_failed() {
    let fake = Fake::load("start");
    let cases = [
        ("cuInit", 999, "does not start: cuInit failed with 999"),
        ("cuInit", 34, "stub"),
        ("cuInit", 100, "shows no card"),
        ("cuDeviceGetUuid_v2", 3, "cuDeviceGetUuid_v2 failed with 3 (not initialized)"),
    ];
    for (call, code, expected) in cases {
        fake.fail(call, 1, code);
        let found = probe().map(|_| ()).expect_err("a failure").to_string();
        assert!(found.contains(expected), "{found}");
    }
    fake.finish();
}
