//! The OpenTelemetry SDK, one instrument per row of the table. Its types appear here and in
//! `encode`, nowhere else: it changes every few months.

use kvtide_core::limits::{MODEL_BYTES_MAX, SALT_CHARS_MAX, TENANTS_MAX};
use kvtide_core::metrics::{Kind, Measurement, TABLE, Text, Value};
use opentelemetry::metrics::{Counter, Gauge, Histogram, MeterProvider};
use opentelemetry::{KeyValue, StringValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{
    Aggregation, Instrument, InstrumentKind, ManualReader, Pipeline, SdkMeterProvider, Stream,
    Temporality,
};
use std::sync::{Arc, Weak};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Sdk {
    /// In the order of the table.
    instruments: Vec<Recorder>,
    reader: SharedReader,
    /// Shuts the SDK down when it goes.
    _provider: SdkMeterProvider,
}

#[derive(Debug)]
enum Recorder {
    Counter(Counter<u64>),
    Gauge(Gauge<f64>),
    Histogram(Histogram<f64>),
}

impl Sdk {
    pub(super) fn new(instance_id: &str) -> Sdk {
        let reader = SharedReader(Arc::new(ManualReader::builder().build()));
        let provider = SdkMeterProvider::builder()
            .with_resource(resource(instance_id))
            .with_reader(reader.clone())
            .with_view(view)
            .build();
        let instruments = TABLE.iter().map(|row| {
            let meter = provider.meter(row.meter);
            match row.kind {
                Kind::Counter => Recorder::Counter(
                    meter
                        .u64_counter(row.name)
                        .with_unit(row.unit)
                        .with_description(row.help)
                        .build(),
                ),
                Kind::Gauge => Recorder::Gauge(
                    meter
                        .f64_gauge(row.name)
                        .with_unit(row.unit)
                        .with_description(row.help)
                        .build(),
                ),
                Kind::Histogram(_) => Recorder::Histogram(
                    meter
                        .f64_histogram(row.name)
                        .with_unit(row.unit)
                        .with_description(row.help)
                        .build(),
                ),
            }
        });
        Sdk { instruments: instruments.collect(), reader, _provider: provider }
    }

    pub(super) fn record(&self, measurement: &Measurement) {
        // The fold gives labels sorted, so the SDK keeps each set once and not in two orders.
        let labels: Vec<KeyValue> = measurement
            .labels
            .iter()
            .map(|(name, text)| KeyValue::new(*name, string_value(text)))
            .collect();
        match (&self.instruments[measurement.metric as usize], measurement.value) {
            (Recorder::Counter(counter), Value::Add(amount)) => counter.add(amount, &labels),
            (Recorder::Gauge(gauge), Value::Set(value)) => gauge.record(value, &labels),
            (Recorder::Histogram(histogram), Value::Observe(value)) => {
                histogram.record(value, &labels);
            }
            (_, value) => panic!("{:?} is not told {value:?}", measurement.metric),
        }
    }

    pub(super) fn collect(
        &self,
    ) -> Result<ResourceMetrics, opentelemetry_sdk::error::OTelSdkError> {
        let mut collected = ResourceMetrics::default();
        self.reader.collect(&mut collected)?;
        Ok(collected)
    }
}

/// Bytes of all series when every row is full, names included. The SDK tells no sizes: a counted
/// estimate, from above.
pub(super) fn memory_bytes_max() -> u64 {
    let bytes = TABLE.iter().map(|row| {
        // The SDK sizes its map for the bound at once, and keeps one place in eight free.
        let places = ((row.series_max + 1) * 8 / 7).next_power_of_two();
        let buckets = match row.kind {
            Kind::Histogram(bounds) => (bounds.len() + 1) * 2 * size_of::<u64>(),
            Kind::Counter | Kind::Gauge => 0,
        };
        let labels = row.labels.len() * size_of::<KeyValue>();
        places * PLACE_BYTES + row.series_max * (labels + buckets + SERIES_BYTES)
    });
    let skipped_names = TENANTS_MAX * (MODEL_BYTES_MAX + 4 * SALT_CHARS_MAX);
    (bytes.sum::<usize>() + skipped_names) as u64
}

/// A list of labels, a pointer and a control byte.
const PLACE_BYTES: usize = size_of::<Vec<KeyValue>>() + size_of::<usize>() + 1;
/// Counts, flags, locks and what the allocator adds.
const SERIES_BYTES: usize = 256;

fn string_value(text: &Text) -> StringValue {
    match text {
        Text::Fixed(text) => StringValue::from(*text),
        Text::Shared(text) => StringValue::from(text.clone()),
    }
}

/// Every instrument gets its own bound on label sets, and a histogram its buckets.
fn view(instrument: &Instrument) -> Option<Stream> {
    let row = TABLE.iter().find(|row| row.name == instrument.name())?;
    let stream = Stream::builder().with_cardinality_limit(row.series_max);
    let stream = match row.kind {
        Kind::Histogram(bounds) => stream.with_aggregation(Aggregation::ExplicitBucketHistogram {
            boundaries: bounds.to_vec(),
            record_min_max: false,
        }),
        Kind::Counter | Kind::Gauge => stream,
    };
    Some(stream.build().expect("bounds and buckets of the table are tested"))
}

/// Who measures (spec/metrics §1.3). The environment may name the service; where it does not, the
/// SDK would add the program's name to the peer's `unknown_service`.
fn resource(instance_id: &str) -> Resource {
    let given = Resource::builder().build();
    let name = given.get(&"service.name".into()).map(|name| name.to_string());
    let name = name.filter(|name| !name.starts_with("unknown_service:"));
    Resource::builder()
        .with_service_name(name.unwrap_or_else(|| "unknown_service".to_string()))
        .with_attribute(KeyValue::new("service.instance.id", instance_id.to_string()))
        .build()
}

/// The provider owns its reader; we read too.
#[derive(Clone, Debug)]
struct SharedReader(Arc<ManualReader>);

impl MetricReader for SharedReader {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, into: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(into)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}
