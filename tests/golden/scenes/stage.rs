//! Where scenes are played: a pool of objects of 1 MiB, with everything written down.

use crate::harness::{Bench, config};
use crate::transcript::Transcript;
use kvtide_core::config::Config;
use kvtide_core::event::Event;

/// A pool of so many objects of 1 MiB.
pub fn stage(objects: u64) -> Bench {
    stage_of(config(objects))
}

/// The same, as configured.
pub fn stage_of(config: Config) -> Bench {
    let mut bench = Bench::new(config);
    bench.transcript = Some(Transcript::of_scene());
    bench
}

/// A pool in which nothing goes before a store needs the room.
pub fn stage_without_watermark(objects: u64) -> Bench {
    stage_of(Config { watermark_ppm: 1_000_000, ..config(objects) })
}

fn transcript(bench: &mut Bench) -> &mut Transcript {
    bench.transcript.as_mut().expect("a scene is written down")
}

/// A heading.
pub fn say(bench: &mut Bench, text: &str) {
    transcript(bench).say(text);
}

/// Whose connection this is, where it is not that of the worker of its number.
pub fn name(bench: &mut Bench, connection: kvtide_core::names::Connection, name: &str) {
    transcript(bench).name(connection, name);
}

/// What the pool holds, where no event has changed it.
pub fn show_instances(bench: &mut Bench) {
    let count = bench.status().instances.len();
    transcript(bench).line(&format!("          registered: {count}"));
}

/// The server is killed and started again: a new engine on the same flags. Clients and clock go on.
pub fn restart(mut bench: Bench) -> Bench {
    let mut config = bench.engine.config().clone();
    config.incarnation += 1;
    let bytes = config.l1_bytes;
    let mut again = Bench::without_arena(config);
    again.now = bench.now;
    again.transcript = bench.transcript.take();
    transcript(&mut again).server_gone();
    again.handle(Event::ArenaGrown { bytes });
    again
}

/// The whole story.
pub fn end(bench: Bench) -> String {
    bench.transcript.expect("a scene is written down").text
}
