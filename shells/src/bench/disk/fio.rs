//! The yardstick of disks: fio writes one new file per object and reads them again, with the
//! tier's size of objects and its queue depth, past the page cache, in a folder beside the objects.

use super::{Size, Told};
use crate::bench::fault::BenchFault;
use crate::bench::figures::Figures;
use crate::bench::flags::BenchFlags;
use crate::bench::stop::Stop;
use crate::bench::transfer::REQUEST_BYTES;
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub struct Fio {
    program: PathBuf,
    folder: PathBuf,
    depth: u32,
    /// What a round moves, in requests.
    requests: u64,
}

/// Removes the files, whatever came of them.
struct Files(PathBuf);

impl Fio {
    /// None where it is not asked for; it is tried at once.
    pub fn find(flags: &BenchFlags) -> Result<Option<Fio>, BenchFault> {
        let (Some(program), Some(folder)) = (&flags.fio, &flags.disk_dir) else {
            return Ok(None);
        };
        let fio = Fio {
            program: program.clone(),
            folder: folder.clone(),
            depth: flags.disk_depth,
            requests: (flags.disk_mib << 20) / REQUEST_BYTES,
        };
        fio.run(&["--version".to_owned()])?;
        Ok(Some(fio))
    }

    /// Writes and reads as many objects as a round of that size has.
    pub fn measure(&self, size: Size, stop: &Stop) -> Result<Figures, BenchFault> {
        let name = format!("kvtide-bench-fio-{}", std::process::id());
        let files = Files::make(self.folder.join(name)).map_err(|error| self.fault(error))?;
        let gb_s = |what| {
            stop.check()?;
            let output = self.run(&self.arguments(size, &files.0, what))?;
            stop.check()?;
            gb_s_of(&output, what).ok_or_else(|| self.fault("its output tells no figures"))
        };
        let store_gb_s = Some(gb_s("write")?);
        let load_gb_s = Some(gb_s("read")?);
        Ok(Told { store_gb_s, load_gb_s, ..Told::default() }.figures())
    }

    fn arguments(&self, size: Size, folder: &Path, what: &str) -> Vec<String> {
        let Size { chunks, object_bytes } = size;
        let files = self.requests * chunks;
        let open = u64::from(self.depth) * 2;
        vec![
            // Both runs have the same name, and so the same files.
            "--name=objects".to_owned(),
            format!("--directory={}", folder.display()),
            format!("--rw={what}"),
            format!("--bs={object_bytes}"),
            format!("--filesize={object_bytes}"),
            format!("--nrfiles={files}"),
            format!("--openfiles={}", open.min(files)),
            "--create_on_open=1".to_owned(),
            "--fallocate=none".to_owned(),
            "--direct=1".to_owned(),
            "--ioengine=io_uring".to_owned(),
            format!("--iodepth={}", self.depth),
            "--output-format=json".to_owned(),
        ]
    }

    fn run(&self, arguments: &[String]) -> Result<Vec<u8>, BenchFault> {
        let output = Command::new(&self.program).args(arguments).stdin(Stdio::null()).output();
        let output = output.map_err(|error| self.fault(error))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let told = String::from_utf8_lossy(&output.stderr);
        let last = told.lines().rfind(|line| !line.is_empty()).unwrap_or("it says nothing");
        Err(self.fault(format!("{}: {last}", output.status)))
    }

    fn fault(&self, what: impl std::fmt::Display) -> BenchFault {
        BenchFault::new(format!("--fio: {}: {what}", self.program.display()))
    }
}

impl Files {
    fn make(folder: PathBuf) -> io::Result<Files> {
        fs::create_dir(&folder)?;
        Ok(Files(folder))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Fails only where somebody else has been at it.
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Gigabytes per second of its only job; None where it failed or moved nothing. Remarks may stand
/// before the JSON.
fn gb_s_of(output: &[u8], what: &str) -> Option<f64> {
    let start = output.iter().position(|byte| *byte == b'{')?;
    let output: Value = serde_json::from_slice(&output[start..]).ok()?;
    let job = output["jobs"].get(0)?;
    let bytes = job[what]["io_bytes"].as_f64()?;
    let millis = job[what]["runtime"].as_f64()?;
    let right = job["error"] == 0 && bytes > 0.0 && millis > 0.0;
    right.then_some(bytes / 1e6 / millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_bytes_by_time_of_the_job_that_was_run() {
        let output = br#"note: a remark
            {"jobs": [{"error": 0, "write": {"io_bytes": 268435456, "runtime": 257},
                       "read": {"io_bytes": 0, "runtime": 0}}]}"#;
        let found = gb_s_of(output, "write").expect("it is there");
        assert!((found - 1.0445).abs() < 0.0001, "{found}");
        assert_eq!(gb_s_of(output, "read"), None, "nothing was read");
        let failed = br#"{"jobs": [{"error": 28, "write": {"io_bytes": 4096, "runtime": 1}}]}"#;
        assert_eq!(gb_s_of(failed, "write"), None);
        assert_eq!(gb_s_of(b"fio-3.33", "write"), None);
    }
}
