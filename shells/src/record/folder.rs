//! A folder of its own for each test, gone with it.

use std::fs;
use std::path::{Path, PathBuf};

pub struct Folder(PathBuf);

impl Folder {
    pub fn new(test: &str) -> Folder {
        let name = format!("kvtide-record-{}-{test}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("the name is free");
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Names and sizes, in order.
    pub fn files(&self) -> Vec<(String, u64)> {
        let entries = fs::read_dir(&self.0).expect("it is there");
        let mut files: Vec<(String, u64)> = entries
            .map(|entry| {
                let entry = entry.expect("it can be read");
                let bytes = entry.metadata().expect("it is there").len();
                (entry.file_name().into_string().expect("plain"), bytes)
            })
            .collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}
