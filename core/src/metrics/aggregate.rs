//! A small pure aggregator: what the SDK does with measurements, without the SDK. Tests compare
//! the pages of both, the simulator reads counters from it.
//!
//! The one invariant: it keeps at most `series_max` label sets of a metric, as the SDK does.

use super::page::{FamilyKind, Page, SeriesValue, Spread, series_name};
use super::table::{Kind, Metric, TABLE};
use super::{Labels, Measurement, Text, Value};
use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::vec::Vec;

/// Counters, gauges and histograms by label set.
#[derive(Clone, Debug)]
pub struct Aggregate {
    /// One per metric, in the order of the table.
    metrics: Vec<BTreeMap<Labels, SeriesValue>>,
}

impl Default for Aggregate {
    fn default() -> Aggregate {
        Aggregate { metrics: TABLE.iter().map(|_| BTreeMap::new()).collect() }
    }
}

impl Aggregate {
    pub fn record(&mut self, measurement: &Measurement) {
        let definition = measurement.metric.definition();
        let series = &mut self.metrics[measurement.metric as usize];
        let overflow = overflow();
        let mut labels = &measurement.labels;
        if !labels.is_empty() && !series.contains_key(labels) {
            let apart = series.keys().filter(|labels| !labels.is_empty() && **labels != overflow);
            if apart.count() >= definition.series_max {
                labels = &overflow;
            }
        }
        let place = series.entry(labels.clone()).or_insert_with(|| match definition.kind {
            Kind::Histogram(bounds) => SeriesValue::Spread(Spread::empty(bounds)),
            Kind::Counter | Kind::Gauge => SeriesValue::Number(0.0),
        });
        match (place, measurement.value) {
            (SeriesValue::Number(there), Value::Add(more)) => *there += more as f64,
            (SeriesValue::Number(there), Value::Set(value)) => *there = value,
            (SeriesValue::Spread(spread), Value::Observe(value)) => spread.observe(value),
            (place, value) => panic!("{:?} cannot become {value:?}", (measurement.metric, place)),
        }
    }

    /// The series of one metric, as they would stand on the page.
    pub fn series(&self, metric: Metric) -> &BTreeMap<Labels, SeriesValue> {
        &self.metrics[metric as usize]
    }

    pub fn page(&self) -> Page {
        let mut page = Page::default();
        for (definition, all) in TABLE.iter().zip(&self.metrics) {
            let kind = FamilyKind::of(definition.kind);
            for (labels, value) in all {
                page.add(
                    series_name(definition.name, definition.unit, kind),
                    kind,
                    definition.help,
                    labels.iter().map(|(label, text)| (*label, text.as_str().to_string())),
                    value.clone(),
                );
            }
        }
        page
    }
}

/// The label set that the SDK gives to what is over the bound.
fn overflow() -> Labels {
    [("otel.metric.overflow", Text::Fixed("true"))].into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::sync::Arc;

    #[test]
    fn label_sets_over_the_bound_share_one_series() {
        let mut all = Aggregate::default();
        let bound = Metric::InstanceEnds.definition().series_max;
        for index in 0..bound + 10 {
            let name: Arc<str> = format!("{index}").into();
            all.record(&Measurement {
                metric: Metric::InstanceEnds,
                labels: [("why", Text::Shared(name))].into_iter().collect(),
                value: Value::Add(1),
            });
        }
        assert_eq!(all.series(Metric::InstanceEnds).len(), bound + 1);
        let page = all.page();
        let over = page.number("kvtide_instance_ends_total", &[("otel_metric_overflow", "true")]);
        assert_eq!(over, 10.0);
    }
}
