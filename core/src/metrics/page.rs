//! A page of metrics in the text form that Prometheus reads, with the peer's naming rules
//! (spec/metrics §1). Pure: the shells fill it from the SDK, tests from `aggregate`.
//!
//! The one invariant: every family stands once, with one type, and no series stands twice,
//! whatever is added (known failure F40).

use super::table::Kind;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};

/// The type of a family on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyKind {
    Counter,
    Gauge,
    Histogram,
}

impl FamilyKind {
    pub fn of(kind: Kind) -> FamilyKind {
        match kind {
            Kind::Counter => FamilyKind::Counter,
            Kind::Gauge => FamilyKind::Gauge,
            Kind::Histogram(_) => FamilyKind::Histogram,
        }
    }

    fn word(self) -> &'static str {
        match self {
            FamilyKind::Counter => "counter",
            FamilyKind::Gauge => "gauge",
            FamilyKind::Histogram => "histogram",
        }
    }
}

/// The value of one series.
#[derive(Clone, Debug, PartialEq)]
pub enum SeriesValue {
    Number(f64),
    Spread(Spread),
}

/// A histogram: `counts` has one entry more than `bounds`, and none is cumulative.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    pub bounds: Vec<f64>,
    pub counts: Vec<u64>,
    pub sum: f64,
}

/// Label names and values, sorted by name, none empty.
pub type SeriesLabels = Vec<(String, String)>;

/// All series of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    pub kind: FamilyKind,
    pub help: String,
    pub series: BTreeMap<SeriesLabels, SeriesValue>,
}

/// The page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    families: BTreeMap<String, Family>,
}

impl Page {
    /// Adds a series. Its name is final; label names are cleaned here and empty labels dropped,
    /// since an empty and an absent label are the same series. A series that is there already is
    /// merged. One of another type than its family is left out: a page that a strict reader
    /// refuses would lose every other series with it.
    pub fn add<'a>(
        &mut self,
        name: String,
        kind: FamilyKind,
        help: &str,
        labels: impl IntoIterator<Item = (&'a str, String)>,
        value: SeriesValue,
    ) {
        let family = self.families.entry(name).or_insert_with(|| Family {
            kind,
            help: help.to_string(),
            series: BTreeMap::new(),
        });
        let fits = matches!(value, SeriesValue::Spread(_)) == (kind == FamilyKind::Histogram);
        if family.kind != kind || !fits {
            return;
        }
        let labels: BTreeMap<String, String> = labels
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(label, text)| (clean(label, false), text))
            .collect();
        let labels = labels.into_iter().collect();
        match family.series.entry(labels) {
            alloc::collections::btree_map::Entry::Vacant(place) => {
                place.insert(value);
            }
            alloc::collections::btree_map::Entry::Occupied(place) => {
                merge(kind, place.into_mut(), value);
            }
        }
    }

    /// In order of names.
    pub fn families(&self) -> impl Iterator<Item = (&str, &Family)> {
        self.families.iter().map(|(name, family)| (name.as_str(), family))
    }

    pub fn family(&self, name: &str) -> Option<&Family> {
        self.families.get(name)
    }

    /// The value of a counter or gauge; 0 when there is no such series.
    pub fn number(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels: SeriesLabels =
            labels.iter().map(|(label, text)| (label.to_string(), text.to_string())).collect();
        match self.family(name).and_then(|family| family.series.get(&labels)) {
            Some(SeriesValue::Number(value)) => *value,
            _ => 0.0,
        }
    }

    /// The text of the page. Every sample carries the union of its family's label names.
    pub fn render(&self) -> String {
        let mut out = String::new();
        for (name, family) in &self.families {
            if family.series.is_empty() {
                continue;
            }
            let word = family.kind.word();
            out.push_str(&format!("# HELP {name} {}\n", escape(&family.help, false)));
            out.push_str(&format!("# TYPE {name} {word}\n"));
            let labels: BTreeSet<&str> =
                family.series.keys().flatten().map(|(label, _)| label.as_str()).collect();
            for (own, value) in &family.series {
                let own: BTreeMap<&str, &str> = labels
                    .iter()
                    .map(|label| (*label, ""))
                    .chain(own.iter().map(|(label, text)| (label.as_str(), text.as_str())))
                    .collect();
                render_series(&mut out, name, own, value);
            }
        }
        out
    }
}

fn render_series(out: &mut String, name: &str, labels: BTreeMap<&str, &str>, value: &SeriesValue) {
    let spread = match value {
        SeriesValue::Number(number) => return line(out, name, "", &labels, *number),
        SeriesValue::Spread(spread) => spread,
    };
    let mut below = 0;
    for (index, count) in spread.counts.iter().enumerate() {
        below += count;
        let bound = spread.bounds.get(index).copied().unwrap_or(f64::INFINITY);
        let bound = number(bound);
        let mut labels = labels.clone();
        labels.insert("le", &bound);
        line(out, name, "_bucket", &labels, below as f64);
    }
    line(out, name, "_count", &labels, below as f64);
    line(out, name, "_sum", &labels, spread.sum);
}

fn line(out: &mut String, name: &str, ending: &str, labels: &BTreeMap<&str, &str>, value: f64) {
    out.push_str(name);
    out.push_str(ending);
    for (index, (label, text)) in labels.iter().enumerate() {
        out.push(if index == 0 { '{' } else { ',' });
        out.push_str(&format!("{label}=\"{}\"", escape(text, true)));
    }
    if !labels.is_empty() {
        out.push('}');
    }
    out.push(' ');
    out.push_str(&number(value));
    out.push('\n');
}

/// Counters and histograms of the same series add up; of a gauge the last one stands.
fn merge(kind: FamilyKind, there: &mut SeriesValue, more: SeriesValue) {
    match (there, more) {
        (SeriesValue::Number(there), SeriesValue::Number(more)) => {
            *there = if kind == FamilyKind::Counter { *there + more } else { more };
        }
        (SeriesValue::Spread(there), SeriesValue::Spread(more)) if there.bounds == more.bounds => {
            there.sum += more.sum;
            for (count, more) in there.counts.iter_mut().zip(more.counts) {
                *count += more;
            }
        }
        _ => {}
    }
}

impl Spread {
    pub fn empty(bounds: &[f64]) -> Spread {
        Spread { bounds: bounds.to_vec(), counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// A value equal to a boundary belongs below it.
    pub fn observe(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// The name of a family: the instrument's name cleaned, then its unit, then `_total` on a counter,
/// none of them twice (spec/metrics §1.1, known failure F39).
pub fn series_name(instrument: &str, unit: &str, kind: FamilyKind) -> String {
    let mut name = clean(instrument, true);
    let unit = unit_word(unit);
    if !unit.is_empty() && !name.ends_with(&unit) {
        name.push('_');
        name.push_str(&unit);
    }
    if kind == FamilyKind::Counter && !name.ends_with("_total") {
        name.push_str("_total");
    }
    name
}

/// Each run of characters that a name may not hold, and of underscores, becomes one underscore.
fn clean(name: &str, colons: bool) -> String {
    let mut out = String::with_capacity(name.len());
    for letter in name.chars() {
        if letter.is_ascii_alphanumeric() || (colons && letter == ':') {
            out.push(letter);
        } else if !out.ends_with('_') {
            out.push('_');
        }
    }
    out
}

fn unit_word(unit: &str) -> String {
    if unit.starts_with('{') {
        return String::new();
    }
    match unit.split_once('/') {
        Some((many, "s")) => format!("{}_per_second", plural(many)),
        Some((many, one)) => format!("{}_per_{}", plural(many), clean(one, true)),
        None => plural(unit),
    }
}

fn plural(unit: &str) -> String {
    match unit {
        "s" => "seconds".to_string(),
        "ms" => "milliseconds".to_string(),
        "By" => "bytes".to_string(),
        other => clean(other, true),
    }
}

/// A number as Go prints it: `3.0`, `1.048576e+06`, `+Inf`.
pub fn number(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".to_string() } else { "-Inf".to_string() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').expect("an exponent was asked for");
    let exponent: i32 = exponent.parse().expect("Rust wrote the exponent");
    if value != 0.0 && !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// Backslash and line feed always, quotes inside label values only.
fn escape(text: &str, quotes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f39_suffixes_are_added_once() {
        let name = |instrument, unit| series_name(instrument, unit, FamilyKind::Counter);
        assert_eq!(name("lmcache_mp.l1_read", "chunks"), "lmcache_mp_l1_read_chunks_total");
        assert_eq!(name("lmcache_mp.lookups", "requests"), "lmcache_mp_lookups_requests_total");
        assert_eq!(name("a.l1_keys", "keys"), "a_l1_keys_total");
        assert_eq!(name("a.dropped_events_total", ""), "a_dropped_events_total");
        assert_eq!(name("a.phase_bytes", "By"), "a_phase_bytes_total");
        assert_eq!(name("a.phase_elapsed", "s"), "a_phase_elapsed_seconds_total");
        assert_eq!(name("a.s_objects", "chunks"), "a_s_objects_chunks_total");
        let name = |instrument, unit| series_name(instrument, unit, FamilyKind::Histogram);
        assert_eq!(name("a.gap_objects", "{chunks}"), "a_gap_objects");
        assert_eq!(name("a.speed", "GB/s"), "a_speed_GB_per_second");
        assert_eq!(name("a.lookup_duration", "ms"), "a_lookup_duration_milliseconds");
        assert_eq!(name("a:b__c", ""), "a:b_c");
    }

    #[test]
    fn numbers_are_written_as_go_writes_them() {
        let written = [
            (0.0, "0.0"),
            (3.0, "3.0"),
            (-2.5, "-2.5"),
            (999_999.0, "999999.0"),
            (1_048_576.0, "1.048576e+06"),
            (2e9, "2e+09"),
            (1e22, "1e+22"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ];
        for (value, text) in written {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn samples_carry_the_union_of_their_familys_labels() {
        let mut page = Page::default();
        let one = SeriesValue::Number(1.0);
        page.add("a".into(), FamilyKind::Gauge, "h", [("x", "1\"\n".into())], one.clone());
        page.add("a".into(), FamilyKind::Gauge, "h", [("b.c", "2\\".into())], one);
        let text = "# HELP a h\n# TYPE a gauge\n\
                    a{b_c=\"2\\\\\",x=\"\"} 1.0\na{b_c=\"\",x=\"1\\\"\\n\"} 1.0\n";
        assert_eq!(page.render(), text);
    }

    #[test]
    fn f40_a_series_never_stands_twice_and_a_family_has_one_type() {
        let mut page = Page::default();
        let value = |number| SeriesValue::Number(number);
        page.add("c".into(), FamilyKind::Counter, "h", [("x", "".into())], value(1.0));
        page.add("c".into(), FamilyKind::Counter, "h", [], value(2.0));
        page.add("c".into(), FamilyKind::Gauge, "other", [], value(7.0));
        page.add("g".into(), FamilyKind::Gauge, "h", [], value(1.0));
        page.add("g".into(), FamilyKind::Gauge, "h", [], value(2.0));
        let text = "# HELP c h\n# TYPE c counter\nc 3.0\n# HELP g h\n# TYPE g gauge\ng 2.0\n";
        assert_eq!(page.render(), text);
    }

    #[test]
    fn buckets_are_cumulative_and_hold_their_boundary() {
        let mut spread = Spread::empty(&[1.0, 5.0]);
        for value in [1.0, 4.0, 5.0, 6.0] {
            spread.observe(value);
        }
        let mut page = Page::default();
        page.add("h".into(), FamilyKind::Histogram, "", [], SeriesValue::Spread(spread));
        let text = "# HELP h \n# TYPE h histogram\nh_bucket{le=\"1.0\"} 1.0\n\
                    h_bucket{le=\"5.0\"} 3.0\nh_bucket{le=\"+Inf\"} 4.0\nh_count 4.0\nh_sum 16.0\n";
        assert_eq!(page.render(), text);
    }
}
