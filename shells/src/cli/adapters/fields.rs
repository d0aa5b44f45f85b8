//! The keys of one JSON object, taken one by one. Null is as good as absent, as it is to the peer.
//! Its one invariant: what nobody has taken is refused by name at the end.

use crate::cli::ConfigFault;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// Where a fault lies: `#2 ("fs")`, and inside of what.
#[derive(Clone, Debug)]
pub struct Label {
    number: usize,
    name: Option<String>,
    within: String,
}

impl Label {
    /// Adapters count from 1, as the peer counts them.
    pub fn new(number: usize) -> Label {
        Label { number, name: None, within: String::new() }
    }

    pub fn typed(mut self, name: &str) -> Label {
        self.name = Some(name.to_owned());
        self
    }

    /// The adapter within this one.
    pub fn inside(mut self) -> Label {
        self.name = None;
        self.within("inner")
    }

    pub fn within(mut self, key: &str) -> Label {
        self.within.push_str(key);
        self.within.push('.');
        self
    }

    pub fn fault(&self, text: impl AsRef<str>) -> ConfigFault {
        let Label { number, name, within } = self;
        let name = name.as_ref().map(|name| format!(" ({name:?})")).unwrap_or_default();
        let within = within.strip_suffix('.').map(|key| format!(" {key}:")).unwrap_or_default();
        ConfigFault::value(format!("--l2-adapter #{number}{name}:{within} {}", text.as_ref()))
    }
}

#[derive(Debug)]
pub struct Fields {
    label: Label,
    map: Map<String, Value>,
    /// Keys that were asked for, for whoever misspelt one.
    known: Vec<&'static str>,
}

impl Fields {
    pub fn new(label: Label, mut map: Map<String, Value>) -> Fields {
        map.remove("type");
        Fields { label, map, known: Vec::new() }
    }

    pub fn label(&self) -> Label {
        self.label.clone()
    }

    pub fn fault(&self, key: &str, rule: &str) -> ConfigFault {
        self.label.fault(format!("{key:?} {rule}"))
    }

    /// Takes over what `other` says of `keys` and this object does not.
    pub fn inherit(&mut self, other: &Map<String, Value>, keys: &[&str]) {
        for key in keys {
            if let Some(value) = other.get(*key) {
                self.map.entry(*key).or_insert_with(|| value.clone());
            }
        }
    }

    pub fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.map.remove(key).filter(|value| !value.is_null())
    }

    pub fn text(&mut self, key: &'static str) -> Result<Option<String>, ConfigFault> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.fault(key, "must be a string")),
        }
    }

    pub fn flag(&mut self, key: &'static str, default: bool) -> Result<bool, ConfigFault> {
        match self.take(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(self.fault(key, "must be true or false")),
        }
    }

    pub fn number(&mut self, key: &'static str) -> Result<Option<f64>, ConfigFault> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(number.as_f64()),
            Some(_) => Err(self.fault(key, "must be a number")),
        }
    }

    /// GiB, as bytes; 0 is as good as absent.
    pub fn size(&mut self, key: &'static str) -> Result<Option<u64>, ConfigFault> {
        let Some(gib) = self.number(key)?.filter(|gib| *gib != 0.0) else { return Ok(None) };
        let bytes = gib * (1_u64 << 30) as f64;
        if bytes < SIZE_BYTES_MIN {
            return Err(self.fault(key, "must be at least 1 MiB, in GiB"));
        }
        Ok(Some(bytes as u64))
    }

    /// 0 to 1.
    pub fn share(&mut self, key: &'static str) -> Result<Option<f64>, ConfigFault> {
        let rule = "must be a number from 0 to 1";
        match self.take(key) {
            None => Ok(None),
            Some(value) => share_of(&value).map(Some).ok_or_else(|| self.fault(key, rule)),
        }
    }

    pub fn shares(&mut self, key: &'static str) -> Result<Vec<f64>, ConfigFault> {
        self.each(key, share_of, "must be a list of numbers from 0 to 1")
    }

    pub fn indices(&mut self, key: &'static str) -> Result<Vec<u32>, ConfigFault> {
        let index = |value: &Value| u32::try_from(value.as_u64()?).ok();
        self.each(key, index, "must be a list of whole numbers, 0 or above")
    }

    pub fn whole(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, ConfigFault> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.as_u64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let (least, most) = range.into_inner();
                let rule = format!("must be a whole number from {least} to {most}");
                Err(self.fault(key, &rule))
            }
        }
    }

    pub fn integer(&mut self, key: &'static str, default: i64) -> Result<i64, ConfigFault> {
        match self.take(key) {
            None => Ok(default),
            Some(value) => {
                let rule = "must be a whole number of 64 bits";
                value.as_i64().ok_or_else(|| self.fault(key, rule))
            }
        }
    }

    /// Nothing may be left.
    pub fn end(self) -> Result<(), ConfigFault> {
        let Some(key) = self.map.keys().next() else { return Ok(()) };
        let known = self.known.join(", ");
        Err(self.fault(key, &format!("is not a key here; keys are {known}")))
    }

    fn each<T>(
        &mut self,
        key: &'static str,
        read: impl Fn(&Value) -> Option<T>,
        rule: &str,
    ) -> Result<Vec<T>, ConfigFault> {
        let list = match self.take(key) {
            None => Some(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(read).collect(),
            Some(_) => None,
        };
        list.ok_or_else(|| self.fault(key, rule))
    }
}

fn share_of(value: &Value) -> Option<f64> {
    value.as_f64().filter(|share| (0.0..=1.0).contains(share))
}

/// An object has at least a page.
const SIZE_BYTES_MIN: f64 = (1 << 20) as f64;
