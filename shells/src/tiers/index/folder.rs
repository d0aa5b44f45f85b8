//! A folder of its own for each test, gone with it.

use std::fs;
use std::path::{Path, PathBuf};

pub struct Folder(PathBuf);

impl Folder {
    pub fn new(test: &str) -> Folder {
        let name = format!("kvtide-index-{}-{test}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("the name is free");
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}
