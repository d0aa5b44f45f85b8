//! The real client: lmcache 0.5.6 in a virtual environment of its own, kept between runs.
//!
//! An environment is named by what is in it (its list of requirements and the Python that it is
//! made for). It is built beside its final name and renamed when complete, under a lock, so one
//! that has its name is whole, whoever was interrupted, and parallel tests build it once.

use crate::child::{self, Finished};
use crate::server::Server;
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Which parts of the client are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Install {
    /// The request client without torch: 219 MB.
    Lean,
    /// Everything, with torch, vLLM's adapters and `lmcache bench`: 6 GB.
    Full,
}

/// An installed client.
pub struct Client {
    python: PathBuf,
}

const INSTALL_TIME_MAX: Duration = Duration::from_secs(30 * 60);
const PYTHON_TIME_MAX: Duration = Duration::from_secs(60);
/// One scenario or bench run; the longest takes 20 s on two idle cores.
pub const RUN_TIME_MAX: Duration = Duration::from_secs(300);

impl Install {
    fn name(self) -> &'static str {
        match self {
            Install::Lean => "lean",
            Install::Full => "full",
        }
    }

    fn requirements(self) -> &'static Path {
        Path::new(match self {
            Install::Lean => concat!(env!("CARGO_MANIFEST_DIR"), "/client/requirements-lean.txt"),
            Install::Full => concat!(env!("CARGO_MANIFEST_DIR"), "/client/requirements-full.txt"),
        })
    }
}

/// Whether the variable that switches the client suite off is set. CI does not set it.
pub fn switched_off() -> bool {
    std::env::var_os("KVTIDE_WITHOUT_CLIENT").is_some_and(|value| value == "1")
}

impl Client {
    /// The client from the cache, installed first where it is not there.
    pub fn have(install: Install) -> Result<Client, String> {
        Client::install(install).map_err(|why| {
            format!(
                "the real client cannot be had, so nothing is proven: {why}\n\
                 (KVTIDE_WITHOUT_CLIENT=1 leaves these tests out)"
            )
        })
    }

    fn install(install: Install) -> Result<Client, String> {
        let (base, version) = base_python()?;
        let requirements = read(install.requirements())?;
        let mark = fingerprint(&[requirements.as_bytes(), version.as_bytes()]);
        let cache = cache_folder()?;
        fs::create_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
        let home = cache.join(format!("client-{}-{mark:016x}", install.name()));
        let _lock = lock(&home.with_extension("lock"))?;
        if !home.exists() {
            let building = home.with_extension("building");
            build(&base, &building, install)?;
            fs::rename(&building, &home).map_err(|error| format!("{}: {error}", home.display()))?;
        }
        Ok(Client { python: home.join("bin/python") })
    }

    /// Runs one scenario of the driver. The exit status is the verdict.
    pub fn drive(&self, server: &Server, scenario: &str) -> Result<Finished, String> {
        self.drive_with(server, scenario, &[])
    }

    /// The same with more arguments.
    pub fn drive_with(
        &self,
        server: &Server,
        scenario: &str,
        arguments: &[&str],
    ) -> Result<Finished, String> {
        let mut command = self.command();
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/client/drive.py")).args([
            "--must-answer",
            "--scenario",
            scenario,
            "--url",
            &server.url(),
        ]);
        child::run(command.args(arguments), RUN_TIME_MAX)
    }

    /// Runs scenarios of server-driven transfer, whose names `only` is in; all where it is empty.
    pub fn server_driven(
        &self,
        server: &Server,
        only: &str,
        stores: u32,
    ) -> Result<Finished, String> {
        let mut command = self.command();
        command
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/client/server_driven.py"))
            .args(["--url", &server.url(), "--http", &server.admin.to_string()])
            .args(["--only", only, "--stores", &stores.to_string()]);
        child::run(&mut command, RUN_TIME_MAX)
    }

    /// Runs the peer's own bench client on CPU tensors (spec/transfer §6): `mode` is
    /// `engine_driven` or `lmcache_driven`. Between a store and its lookup it waits for `interval`
    /// seconds.
    pub fn bench(
        &self,
        server: &Server,
        mode: &str,
        requests: u32,
        interval: &str,
    ) -> Result<Finished, String> {
        let mut command = self.command();
        command
            .args(["-c", "from lmcache.cli.main import main; main()", "bench", "server"])
            .args(["--mode", "cpu", "--transfer-mode", mode])
            .args(["--kvcache-shape-spec", "(2,128,16,2,8):float16:4", "--num-tokens", "512"])
            .args(["--start", "0", "--end", &requests.to_string(), "--interval", interval])
            .args(["--rpc-url", &server.url(), "--url", &format!("http://{}", server.admin)]);
        child::run(&mut command, RUN_TIME_MAX)
    }

    /// Its Python, as every script of the suites is run by it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.python);
        command
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PYTHONUNBUFFERED", "1")
            .env("LMCACHE_TRACK_USAGE", "false")
            .env("LMCACHE_DISABLE_BANNER", "1")
            .env("LMCACHE_LOG_LEVEL", "ERROR")
            .env_remove("PYTHONPATH")
            .env_remove("PYTHONHOME");
        command
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// `KVTIDE_CLIENT_CACHE`, else the user's cache folder: never inside the clone.
fn cache_folder() -> Result<PathBuf, String> {
    let variable = |name: &str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
    if let Some(folder) = variable("KVTIDE_CLIENT_CACHE") {
        return Ok(PathBuf::from(folder));
    }
    if let Some(folder) = variable("XDG_CACHE_HOME") {
        return Ok(PathBuf::from(folder).join("kvtide"));
    }
    match variable("HOME") {
        Some(home) => Ok(PathBuf::from(home).join(".cache/kvtide")),
        None => Err("none of KVTIDE_CLIENT_CACHE, XDG_CACHE_HOME and HOME is set".to_string()),
    }
}

/// The Python to build environments with, and its version. The client was tried with 3.11.
fn base_python() -> Result<(OsString, String), String> {
    let named = std::env::var_os("KVTIDE_PYTHON");
    let candidates = match named {
        Some(python) => vec![python],
        None => ["python3.11", "python3.12", "python3"].map(OsString::from).to_vec(),
    };
    let ask = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])";
    for python in &candidates {
        let answer = child::run(Command::new(python).args(["-c", ask]), PYTHON_TIME_MAX);
        if let Ok(Finished { code: 0, output, .. }) = answer {
            return Ok((python.clone(), output.trim().to_string()));
        }
    }
    Err(format!("none of {candidates:?} is a Python with venv and ensurepip"))
}

/// An exclusive lock for as long as the file is open.
fn lock(path: &Path) -> Result<File, String> {
    let locked = || -> std::io::Result<File> {
        let file = File::options().create(true).append(true).open(path)?;
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
        Ok(file)
    };
    locked().map_err(|error| format!("{}: {error}", path.display()))
}

/// What an interrupted build has left is removed; the lock is ours.
fn build(base: &OsString, home: &Path, install: Install) -> Result<(), String> {
    if home.exists() {
        fs::remove_dir_all(home).map_err(|error| format!("{}: {error}", home.display()))?;
    }
    step("python -m venv", Command::new(base).args(["-m", "venv"]).arg(home))?;
    let mut pip = Command::new(home.join("bin/python"));
    pip.args(["-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check", "-q"]);
    if install == Install::Lean {
        pip.arg("--no-deps");
    }
    step("pip install", pip.arg("-r").arg(install.requirements()))
}

fn step(what: &str, command: &mut Command) -> Result<(), String> {
    let finished = child::run(command, INSTALL_TIME_MAX)?;
    if finished.code == 0 {
        return Ok(());
    }
    let time = if finished.out_of_time { " (out of time)" } else { "" };
    Err(format!(
        "{what} ended with {}{time}:\n{}",
        finished.code,
        child::tail(&finished.output, 20)
    ))
}

/// FNV-1a over parts, each closed by a byte that UTF-8 does not use.
fn fingerprint(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.iter().copied().chain([0xff]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_list_or_another_python_is_another_environment() {
        let mark = fingerprint(&[b"lmcache==0.5.6", b"3.11"]);
        assert_ne!(mark, fingerprint(&[b"lmcache==0.5.7", b"3.11"]));
        assert_ne!(mark, fingerprint(&[b"lmcache==0.5.6", b"3.12"]));
        assert_ne!(fingerprint(&[b"ab", b"c"]), fingerprint(&[b"a", b"bc"]));
    }

    #[test]
    fn both_lists_name_the_release_that_we_are_measured_against() {
        for install in [Install::Lean, Install::Full] {
            let list = read(install.requirements()).expect("the list is there");
            assert!(list.lines().any(|line| line == "lmcache==0.5.6"), "{install:?}");
            let loose = list.lines().find(|line| !line.starts_with('#') && !line.contains("=="));
            assert_eq!(loose, None, "{install:?}: every package has a version");
        }
    }
}
