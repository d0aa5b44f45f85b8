//! A strict reader of pages, and the rule by which two pages are the same (spec/metrics §10).

use std::collections::{BTreeMap, BTreeSet};

pub type Labels = BTreeMap<String, String>;

/// A page as a reader sees it: types by family, values by name and labels. Empty labels are
/// dropped and `le` is a number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadPage {
    pub types: BTreeMap<String, String>,
    pub samples: BTreeMap<(String, Labels), f64>,
}

impl ReadPage {
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels.iter().map(|(label, text)| (label.to_string(), text.to_string()));
        self.samples.get(&(name.to_string(), labels.collect())).copied()
    }

    /// The families that `wanted` names, and of them the samples that it wants.
    pub fn filtered(&self, wanted: impl Fn(&str, &Labels) -> bool) -> ReadPage {
        let samples: BTreeMap<(String, Labels), f64> = self
            .samples
            .iter()
            .filter(|((name, labels), _)| wanted(&self.family_of(name), labels))
            .map(|(key, value)| (key.clone(), *value))
            .collect();
        let families: BTreeSet<String> =
            samples.keys().map(|(name, _)| self.family_of(name)).collect();
        let types = families.iter().map(|name| (name.clone(), self.types[name].clone()));
        ReadPage { types: types.collect(), samples }
    }

    pub fn family_of(&self, sample: &str) -> String {
        for ending in ["_bucket", "_count", "_sum"] {
            let family = sample.strip_suffix(ending);
            if let Some(family) = family.filter(|family| self.types.contains_key(*family)) {
                return family.to_string();
            }
        }
        sample.to_string()
    }
}

/// The same types, the same set of names and labels, values within 1e-9.
pub fn assert_same(ours: &ReadPage, theirs: &ReadPage, what: &str) {
    assert_eq!(ours.types, theirs.types, "types of {what}");
    let names = |page: &ReadPage| page.samples.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(ours), names(theirs), "series of {what}");
    for (key, value) in &ours.samples {
        let other = theirs.samples[key];
        let apart = (value - other).abs();
        assert!(apart <= 1e-9 * other.abs(), "{what}: {key:?} is {value}, not {other}");
    }
}

/// Reads a page, or names the first line that a strict reader would refuse. `helped`: every
/// family has its help, as on our own pages; the peer's goldens come without.
pub fn read(text: &str, helped: bool) -> Result<ReadPage, String> {
    let mut reader = Reader::default();
    if !text.ends_with('\n') {
        return Err("the last line does not end".to_string());
    }
    for line in text.lines() {
        reader.line(line, helped).map_err(|reason| format!("{reason}: {line}"))?;
    }
    check_histograms(&reader.page)?;
    Ok(reader.page)
}

#[derive(Default)]
struct Reader {
    page: ReadPage,
    /// The family whose lines are being read, and whether it has samples already.
    family: String,
    help: Option<String>,
}

impl Reader {
    fn line(&mut self, line: &str, helped: bool) -> Result<(), String> {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, _) = rest.split_once(' ').ok_or("a help without text")?;
            self.help = Some(name.to_string());
            return Ok(());
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or("a type without a word")?;
            if helped && self.help.take().as_deref() != Some(name) {
                return Err("a type without its help above it".to_string());
            }
            if !["counter", "gauge", "histogram"].contains(&kind) {
                return Err("an unknown type".to_string());
            }
            if self.page.types.insert(name.to_string(), kind.to_string()).is_some() {
                return Err("a family that stands twice".to_string());
            }
            self.family = name.to_string();
            return Ok(());
        }
        if self.help.is_some() {
            return Err("a help without its type below it".to_string());
        }
        let (name, labels, value) = sample(line)?;
        let family = self.page.family_of(name);
        if family != self.family {
            return Err("a sample outside its family".to_string());
        }
        let is_histogram = self.page.types[&family] == "histogram";
        if is_histogram == (family == name) {
            return Err("a sample that its type does not have".to_string());
        }
        if self.page.samples.insert((name.to_string(), labels), value).is_some() {
            return Err("a series that stands twice".to_string());
        }
        Ok(())
    }
}

fn sample(line: &str) -> Result<(&str, Labels, f64), String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    let is_letter = |letter: char| letter.is_ascii_alphabetic() || "_:".contains(letter);
    let is_name = name.chars().all(|letter| is_letter(letter) || letter.is_ascii_digit());
    if !name.starts_with(is_letter) || !is_name {
        return Err("no name".to_string());
    }
    let mut labels = Labels::new();
    let mut before = String::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, after) = rest.split_once("=\"").ok_or("a label without a value")?;
            let (text, after) = quoted(after)?;
            let is_label = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            if label.is_empty() || !label.chars().all(is_label) {
                return Err("a bad label name".to_string());
            }
            if *label <= *before {
                return Err("labels out of order".to_string());
            }
            before = label.to_string();
            let text = match label {
                "le" => text.parse::<f64>().map_err(|_| "a bucket without a number")?.to_string(),
                _ => text,
            };
            if !text.is_empty() {
                labels.insert(label.to_string(), text);
            }
            match after.chars().next() {
                Some(',') => rest = &after[1..],
                Some('}') => {
                    rest = &after[1..];
                    break;
                }
                _ => return Err("labels that do not end".to_string()),
            }
        }
    }
    let value = rest.strip_prefix(' ').ok_or("no value")?;
    let value = value.parse::<f64>().map_err(|_| "a value that is no number")?;
    Ok((name, labels, value))
}

/// The text up to the closing quote, and what follows it.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut out = String::new();
    let mut letters = text.char_indices();
    while let Some((index, letter)) = letters.next() {
        match letter {
            '"' => return Ok((out, &text[index + 1..])),
            '\\' => match letters.next() {
                Some((_, 'n')) => out.push('\n'),
                Some((_, plain @ ('\\' | '"'))) => out.push(plain),
                _ => return Err("an unknown escape".to_string()),
            },
            other => out.push(other),
        }
    }
    Err("a text that does not end".to_string())
}

/// Buckets never fall, and the last one holds all.
fn check_histograms(page: &ReadPage) -> Result<(), String> {
    for (name, _) in page.types.iter().filter(|(_, kind)| *kind == "histogram") {
        let mut buckets: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
        for ((_, labels), value) in
            page.samples.iter().filter(|((sample, _), _)| *sample == format!("{name}_bucket"))
        {
            let mut labels = labels.clone();
            let bound = labels.remove("le").ok_or(format!("a bucket of {name} without le"))?;
            let bound = bound.parse().expect("it was written from a number");
            buckets.entry(labels).or_default().push((bound, *value));
        }
        for (labels, mut buckets) in buckets {
            buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
            if !buckets.is_sorted_by(|one, next| one.1 <= next.1) {
                return Err(format!("buckets of {name} {labels:?} fall"));
            }
            let last = *buckets.last().expect("it has the bucket that made it");
            let count = page.samples.get(&(format!("{name}_count"), labels.clone()));
            if last.0 != f64::INFINITY || count != Some(&last.1) {
                return Err(format!("{name} {labels:?} does not end in its count"));
            }
            if !page.samples.contains_key(&(format!("{name}_sum"), labels.clone())) {
                return Err(format!("{name} {labels:?} has no sum"));
            }
        }
    }
    Ok(())
}

#[test]
fn the_reader_is_strict() {
    let refused = [
        ("# TYPE a gauge\na 1.0", "does not end"),
        ("# TYPE a gauge\na 1.0\n# TYPE a gauge\na{x=\"1\"} 1.0\n", "family that stands twice"),
        ("# TYPE a gauge\na 1.0\na{x=\"\"} 2.0\n", "series that stands twice"),
        ("# TYPE a gauge\n# TYPE b gauge\na 1.0\n", "outside its family"),
        ("# TYPE a gauge\na{y=\"1\",x=\"1\"} 1.0\n", "out of order"),
        ("# TYPE a gauge\na{x=\"\\q\"} 1.0\n", "escape"),
        ("# TYPE a gauge\na one\n", "no number"),
        ("# TYPE a histogram\na 1.0\n", "does not have"),
        ("# TYPE a histogram\na_bucket{le=\"+Inf\"} 1\na_count 2\na_sum 1\n", "in its count"),
        ("# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\n", "fall"),
    ];
    for (text, reason) in refused {
        let error = read(text, false).expect_err(text);
        assert!(error.contains(reason), "{error}");
    }
    assert!(read("# TYPE a gauge\na 1.0\n", true).is_err());
    assert!(read("# HELP a h\n# TYPE a gauge\na 1.0\n", true).is_ok());
}
