//! From the SDK's collection to our page. The Rust exporter renames units and doubles suffixes
//! (known failure F39), so names and text are ours: `kvtide_core::metrics::page`.

use super::SeriesValue;
use kvtide_core::metrics::page::{FamilyKind, Page, Spread, series_name};
use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, HistogramDataPoint, Metric, MetricData, ResourceMetrics,
};

/// Adds everything that was collected, and `target_info`. Scopes do not show (spec/metrics §1.2).
pub(super) fn add_collected(collected: &ResourceMetrics, page: &mut Page) {
    let owner: Vec<(&str, String)> = collected
        .resource()
        .iter()
        .map(|(name, value)| (name.as_str(), value.to_string()))
        .collect();
    page.add(
        "target_info".to_string(),
        FamilyKind::Gauge,
        "Who measures.",
        owner,
        SeriesValue::Number(1.0),
    );
    for metric in collected.scope_metrics().flat_map(|scope| scope.metrics()) {
        match metric.data() {
            AggregatedMetrics::F64(data) => add_metric(metric, data, |value| value, page),
            AggregatedMetrics::U64(data) => add_metric(metric, data, |value| value as f64, page),
            AggregatedMetrics::I64(data) => add_metric(metric, data, |value| value as f64, page),
        }
    }
}

fn add_metric<T: Copy>(
    metric: &Metric,
    data: &MetricData<T>,
    float: impl Fn(T) -> f64,
    page: &mut Page,
) {
    match data {
        MetricData::Sum(sum) => {
            // A sum that may fall is a gauge to Prometheus.
            let kind = match sum.is_monotonic() {
                true => FamilyKind::Counter,
                false => FamilyKind::Gauge,
            };
            for point in sum.data_points() {
                let value = SeriesValue::Number(float(point.value()));
                add_point(metric, kind, point.attributes(), value, page);
            }
        }
        MetricData::Gauge(gauge) => {
            for point in gauge.data_points() {
                let value = SeriesValue::Number(float(point.value()));
                add_point(metric, FamilyKind::Gauge, point.attributes(), value, page);
            }
        }
        MetricData::Histogram(histogram) => {
            for point in histogram.data_points() {
                let value = SeriesValue::Spread(spread(point, &float));
                add_point(metric, FamilyKind::Histogram, point.attributes(), value, page);
            }
        }
        // No row of the table becomes one; Prometheus' text form has none.
        MetricData::ExponentialHistogram(_) => {}
    }
}

fn add_point<'a>(
    metric: &Metric,
    kind: FamilyKind,
    attributes: impl Iterator<Item = &'a KeyValue>,
    value: SeriesValue,
    page: &mut Page,
) {
    let name = series_name(metric.name(), metric.unit(), kind);
    let labels = attributes.map(|label| (label.key.as_str(), label.value.to_string()));
    page.add(name, kind, metric.description(), labels, value);
}

fn spread<T: Copy>(point: &HistogramDataPoint<T>, float: impl Fn(T) -> f64) -> Spread {
    Spread {
        bounds: point.bounds().collect(),
        counts: point.bucket_counts().collect(),
        sum: float(point.sum()),
    }
}
