//! Options of one soak: words in pairs.

use std::collections::BTreeMap;

#[derive(Debug)]
pub struct Options(BTreeMap<String, String>);

impl Options {
    /// An error names the first word that is not one of `known`, or has no value.
    pub fn read(words: &[String], known: &[&str]) -> Result<Options, String> {
        let mut options = BTreeMap::new();
        let mut words = words.iter();
        while let Some(name) = words.next() {
            if !known.contains(&name.as_str()) {
                return Err(format!("{name}: no such option here"));
            }
            let value = words.next().ok_or_else(|| format!("{name} wants a value"))?;
            options.insert(name.clone(), value.clone());
        }
        Ok(Options(options))
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub fn number(&self, name: &str, default: u64) -> Result<u64, String> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse().map_err(|_| format!("{name} wants a number, not {text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_nobody_knows_are_named() {
        let read = |text: &str| {
            let words: Vec<String> = text.split_whitespace().map(String::from).collect();
            Options::read(&words, &["--seeds"]).and_then(|options| options.number("--seeds", 7))
        };
        assert_eq!(read(""), Ok(7));
        assert_eq!(read("--seeds 9"), Ok(9));
        assert_eq!(read("--seed 9"), Err("--seed: no such option here".to_string()));
        assert_eq!(read("--seeds"), Err("--seeds wants a value".to_string()));
        assert_eq!(read("--seeds x"), Err("--seeds wants a number, not x".to_string()));
    }
}
