//! All figures of a run: medians over the rounds, ratios between servers, a table, JSON.

use super::case::title;
use super::figures::{Figures, Metric};
use super::flags::Part;
use crate::cli::values::spelling;
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// One measurement of one case at one server.
#[derive(Clone, Debug)]
pub struct Record {
    pub part: Part,
    pub case: String,
    /// Index of the server.
    pub server: usize,
    pub round: u32,
    pub figures: Figures,
}

/// Medians of one case at one server.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    part: Part,
    case: String,
    server: usize,
    figures: Figures,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    servers: Vec<String>,
    records: Vec<Record>,
}

impl Report {
    pub fn new(servers: Vec<String>) -> Report {
        Report { servers, records: Vec::new() }
    }

    pub fn add(&mut self, record: Record) {
        self.records.push(record);
    }

    /// The table of one part. Empty where nothing was measured.
    pub fn table(&self, part: Part) -> String {
        let rows = self.rows(part);
        let Some(first) = rows.first() else { return String::new() };
        let metrics: Vec<Metric> = first.figures.iter().map(|(metric, _)| *metric).collect();
        let mut lines = vec![vec![String::new(), "server".to_owned()]];
        lines[0].extend(metrics.iter().map(|metric| metric.head.to_owned()));
        let mut case = "";
        for row in &rows {
            let shown = if row.case == case { String::new() } else { row.case.clone() };
            case = &row.case;
            let mut line = vec![shown, self.servers[row.server].clone()];
            line.extend(row.figures.iter().map(|(metric, value)| digits(*value, metric.digits)));
            lines.push(line);
            // Behind the last server of a case: how the first one stands to each other.
            let last = rows.iter().rfind(|other| other.case == row.case);
            if last == Some(row) {
                lines.extend(self.ratios(&rows, &row.case).into_iter().map(|(name, ratios)| {
                    let mut line = vec![String::new(), name];
                    line.extend(ratios.iter().map(|(_, ratio)| times(*ratio)));
                    line
                }));
            }
        }
        format!("{}\n{}", title(part), columns(&lines))
    }

    /// For each further server of a case: how many times better the first one is.
    fn ratios(&self, rows: &[Row], case: &str) -> Vec<(String, Figures)> {
        let mut of_case = rows.iter().filter(|row| row.case == case);
        let Some(first) = of_case.next().filter(|first| first.server == 0) else {
            return Vec::new();
        };
        let ratios = of_case.map(|other| {
            let pairs = first.figures.iter().zip(&other.figures);
            let ratios = pairs.map(|((metric, ours), (_, theirs))| {
                let both = ours.zip(*theirs);
                (*metric, both.and_then(|(ours, theirs)| metric.times_better(ours, theirs)))
            });
            let names = [first.server, other.server].map(|server| self.servers[server].as_str());
            (format!("{} against {}", names[0], names[1]), ratios.collect())
        });
        ratios.collect()
    }

    /// Cases and servers in the order in which they were measured.
    fn rows(&self, part: Part) -> Vec<Row> {
        let of_part = || self.records.iter().filter(move |record| record.part == part);
        let mut rows: Vec<Row> = Vec::new();
        for record in of_part() {
            let known = |row: &Row| row.case == record.case && row.server == record.server;
            if rows.iter().any(known) {
                continue;
            }
            let same = || {
                of_part().filter(|other| other.case == record.case && other.server == record.server)
            };
            let figures = record.figures.iter().enumerate().map(|(at, (metric, _))| {
                let values = same().filter_map(|other| other.figures.get(at)?.1).collect();
                (*metric, median(values))
            });
            let figures = figures.collect();
            let (case, server) = (record.case.clone(), record.server);
            rows.push(Row { part, case, server, figures });
        }
        rows
    }

    /// Everything, for machines. `about` says what was run.
    pub fn json(&self, about: Value) -> Value {
        let parts = Part::value_variants();
        let rows: Vec<Row> = parts.iter().flat_map(|part| self.rows(*part)).collect();
        let records = self.records.iter().map(|record| {
            json!({
                "part": spelling(record.part),
                "case": record.case,
                "server": self.servers[record.server],
                "round": record.round,
                "figures": object(&record.figures),
            })
        });
        let medians = rows.iter().map(|row| {
            json!({
                "part": spelling(row.part),
                "case": row.case,
                "server": self.servers[row.server],
                "figures": object(&row.figures),
            })
        });
        let mut ratios = Vec::new();
        for part in parts {
            let rows = self.rows(*part);
            let mut cases: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
            cases.dedup();
            for case in cases {
                ratios.extend(self.ratios(&rows, case).into_iter().map(|(servers, ratios)| {
                    json!({
                        "part": spelling(*part),
                        "case": case,
                        "servers": servers,
                        "times_better": object(&ratios),
                    })
                }));
            }
        }
        json!({
            "version": JSON_VERSION,
            "about": about,
            "medians": medians.collect::<Vec<_>>(),
            "ratios": ratios,
            "rounds": records.collect::<Vec<_>>(),
        })
    }
}

fn object(figures: &Figures) -> Value {
    let pairs = figures.iter().map(|(metric, value)| (metric.name.to_owned(), json!(value)));
    Value::Object(pairs.collect::<Map<_, _>>())
}

/// The middle value; of an even number the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

fn digits(value: Option<f64>, digits: usize) -> String {
    value.map_or("unknown".to_owned(), |value| format!("{value:.digits$}"))
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or(String::new(), |ratio| format!("{ratio:.2}x"))
}

/// Lines of cells under each other: texts to the left, figures to the right.
fn columns(lines: &[Vec<String>]) -> String {
    let count = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let mut shown = String::new();
        for (at, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let written = if at < TEXT_COLUMNS {
                write!(shown, "  {cell:<width$}")
            } else {
                write!(shown, "  {cell:>width$}")
            };
            written.expect("text can be written to");
        }
        text.push_str(shown.trim_end());
        text.push('\n');
    }
    text
}

/// Goes up when a field changes its meaning.
pub const JSON_VERSION: u32 = 1;
/// Case and server.
const TEXT_COLUMNS: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::{GENERATOR_CPU_US, P99_US, REQUESTS_PER_S};

    fn report() -> Report {
        let mut report = Report::new(vec!["ours".to_owned(), "theirs".to_owned()]);
        for round in 0..3 {
            for (server, rate, p99) in [(0, 9000.0, 2000.0), (1, 450.0, 50_000.0)] {
                let rate = rate + f64::from(round);
                report.add(Record {
                    part: Part::Closed,
                    case: "16 connections".to_owned(),
                    server,
                    round,
                    figures: vec![
                        (REQUESTS_PER_S, Some(rate)),
                        (P99_US, Some(p99)),
                        (GENERATOR_CPU_US, None),
                    ],
                });
            }
        }
        report
    }

    #[test]
    fn a_median_is_the_middle_and_of_nothing_nothing() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }

    #[test]
    fn the_table_shows_medians_and_how_many_times_better() {
        let expected = "\
closed loop: whole requests of 16 chunks that hit, as many as come out
                  server               requests/s   p99 us  generator CPU us
  16 connections  ours                       9001   2000.0           unknown
                  theirs                      451  50000.0           unknown
                  ours against theirs      19.96x   25.00x
";
        assert_eq!(report().table(Part::Closed), expected);
        assert_eq!(report().table(Part::Noop), "", "nothing measured, nothing shown");
    }

    #[test]
    fn the_json_keeps_every_round() {
        let json = report().json(json!({"command": "x"}));
        assert_eq!(json["version"], JSON_VERSION);
        assert_eq!(json["rounds"].as_array().map(Vec::len), Some(6));
        assert_eq!(json["rounds"][5]["figures"]["requests_per_s"], 452.0);
        assert_eq!(json["medians"][1]["figures"]["requests_per_s"], 451.0);
        assert_eq!(json["ratios"][0]["servers"], "ours against theirs");
        assert_eq!(json["ratios"][0]["times_better"]["p99_us"], 25.0);
        assert_eq!(json["ratios"][0]["times_better"]["generator_cpu_us"], Value::Null);
    }
}
