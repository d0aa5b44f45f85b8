//! What no fact tells: turns and sockets of the reactor, and lines that the log lost. Counted where
//! they happen, read at each scrape, and added to the page as they are.

use super::add_plain;
use crate::admin::ReactorSeen;
use crate::log;
use kvtide_core::metrics::page::{FamilyKind, Page, SeriesValue, Spread};

pub(super) fn add_reactor(reactor: &ReactorSeen, page: &mut Page) {
    add_turns(reactor, page);
    let gauges = [
        ("kvtide_connections", "Connections of engines.", reactor.connections),
        ("kvtide_waiting_requests", "Requests that wait for their answer.", reactor.requests),
        (
            "kvtide_medium_frame_bytes_left",
            "Bytes left of the budget that medium frames share.",
            reactor.medium_frame_bytes_left,
        ),
        (
            "kvtide_buffered_bytes",
            "Bytes buffered for connections outside of the budgets of frames.",
            reactor.buffered_bytes,
        ),
        (
            "kvtide_large_frame_bytes_left",
            "Bytes left of the budget that large frames share.",
            reactor.large_frame_bytes_left,
        ),
    ];
    for (name, help, value) in gauges {
        add_plain(page, name, FamilyKind::Gauge, help, value as f64);
    }
    let help = "How often the reactor was found standing still for 5 s and more.";
    let stalls = reactor.stalls as f64;
    add_plain(page, "kvtide_reactor_stalls_total", FamilyKind::Counter, help, stalls);
    for (name, count) in &reactor.totals {
        let (family, help, label) = total(name);
        let value = SeriesValue::Number(*count as f64);
        page.add(family, FamilyKind::Counter, help, label, value);
    }
    for (why, count) in &reactor.closings {
        let help = "Connections that the server closed, by reason.";
        let value = SeriesValue::Number(*count as f64);
        let name = "kvtide_connections_closed_total".to_owned();
        page.add(name, FamilyKind::Counter, help, [("why", (*why).to_owned())], value);
    }
}

fn add_turns(reactor: &ReactorSeen, page: &mut Page) {
    let help = "Turns of the reactor by their time; the sum is the time that it was busy.";
    let sum = reactor.turns_total.as_secs_f64();
    let spread = SeriesValue::Spread(spread(&reactor.turns_by_duration, sum));
    let histogram = FamilyKind::Histogram;
    page.add("kvtide_turn_seconds".to_owned(), histogram, help, [], spread);
    let help = "The longest turn since start, with the slowest event in it.";
    let longest = SeriesValue::Number(reactor.longest_turn.as_secs_f64());
    // A turn that held no event was spent on sockets.
    let event = Some(reactor.longest_event).filter(|event| !event.is_empty());
    let event = [("event", event.unwrap_or("none").to_owned())];
    page.add("kvtide_longest_turn_seconds".to_owned(), FamilyKind::Gauge, help, event, longest);
}

/// From buckets by powers of two to every second of them within what turns take.
fn spread(by_duration: &[u64], sum: f64) -> Spread {
    let bounds: Vec<usize> = (FIRST_BOUND..=LAST_BOUND).step_by(2).collect();
    let mut counts = vec![0; bounds.len() + 1];
    for (at, turns) in by_duration.iter().enumerate() {
        // This bucket ends below `2^(at + 1)` nanoseconds.
        counts[bounds.partition_point(|bound| *bound < at + 1)] += turns;
    }
    let bounds = bounds.iter().map(|bound| (1_u64 << bound) as f64 / 1e9).collect();
    Spread { bounds, counts, sum }
}

/// Name, help and label of one of the reactor's totals. One that is not known here is shown, too.
fn total(name: &str) -> (String, &'static str, Option<(&'static str, String)>) {
    if let Some(why) = name.strip_prefix("turned_away_") {
        let help = "Connections closed as soon as they were accepted, by what there was none of.";
        let label = Some(("why", why.to_owned()));
        return ("kvtide_connections_turned_away_total".to_owned(), help, label);
    }
    let (name, help) = match name {
        "accepted" => ("connections_accepted", "Connections that engines made."),
        "ended" => ("connections_ended", "Connections that are over."),
        "messages" => ("messages", "Messages of clients."),
        "answers" => ("answers", "Answers to clients."),
        "answers_dropped" => ("answers_dropped", "Answers that nobody was left to take."),
        "input_bytes" => ("input_bytes", "Bytes read from clients."),
        "output_bytes" => ("output_bytes", "Bytes written to clients."),
        "fact_batches_dropped" => {
            ("fact_batches_dropped", "Turns whose facts telemetry had no room for.")
        }
        "recording_events" => ("recording_events", "Events that were recorded."),
        "recording_frames" => ("recording_frames", "Frames written to the file of --record."),
        "recording_gaps" => ("recording_gaps", "Recordings that ended before the server did."),
        "recording_dumps" => ("recording_dumps", "Dumps of the flight recorder."),
        other => (other, "Counted by the reactor."),
    };
    (format!("kvtide_{name}_total"), help, None)
}

pub(super) fn add_log(page: &mut Page) {
    let help = "Log lines that nobody read in time.";
    let lost = log::lines_dropped() as f64;
    add_plain(page, "kvtide_log_lines_dropped_total", FamilyKind::Counter, help, lost);
}

pub(super) fn add_restarts(restarts: u64, page: &mut Page) {
    let help = "How often the HTTP thread failed and began anew.";
    let counter = FamilyKind::Counter;
    add_plain(page, "kvtide_http_restarts_total", counter, help, restarts as f64);
}

/// Powers of two of nanoseconds: 1 microsecond to 17 seconds.
const FIRST_BOUND: usize = 10;
const LAST_BOUND: usize = 34;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_turn_is_in_the_bucket_that_holds_its_time() {
        let mut turns = vec![0; 40];
        // Below 1 us, from 1 to 2 us, from 2 to 4 us, and beyond all bounds.
        (turns[3], turns[10], turns[11], turns[39]) = (1, 2, 4, 8);
        let spread = spread(&turns, 1.5);
        assert_eq!(spread.bounds[..2], [1.024e-6, 4.096e-6]);
        assert_eq!(spread.counts[..2], [1, 6]);
        assert_eq!(spread.counts.last(), Some(&8));
        assert_eq!((spread.counts.iter().sum::<u64>(), spread.sum), (15, 1.5));
        assert_eq!(spread.counts.len(), spread.bounds.len() + 1);
    }

    #[test]
    fn the_reactors_counters_have_names_of_their_own() {
        let reactor = ReactorSeen {
            connections: 3,
            totals: vec![("accepted", 7), ("turned_away_full", 2), ("new_one", 1)],
            closings: vec![("protocol", 4), ("message_stalled", 0)],
            longest_turn: Duration::from_millis(2),
            longest_event: "clear",
            ..ReactorSeen::default()
        };
        let mut page = Page::default();
        add_reactor(&reactor, &mut page);
        add_log(&mut page);
        add_restarts(5, &mut page);
        for (name, labels, value) in [
            ("kvtide_connections", &[][..], 3.0),
            ("kvtide_connections_accepted_total", &[], 7.0),
            ("kvtide_connections_turned_away_total", &[("why", "full")], 2.0),
            ("kvtide_new_one_total", &[], 1.0),
            ("kvtide_http_restarts_total", &[], 5.0),
            ("kvtide_connections_closed_total", &[("why", "protocol")], 4.0),
            ("kvtide_longest_turn_seconds", &[("event", "clear")], 0.002),
        ] {
            assert_eq!(page.number(name, labels), value, "{name}");
        }
        assert!(page.family("kvtide_turn_seconds").is_some());
        assert!(page.family("kvtide_log_lines_dropped_total").is_some());
    }
}
