//! The reactor's side of recording: dumps that are asked for, and the end. Invariant: nothing here
//! touches a disk or waits for one, but for the dump after a panic, when nobody is served any more.

use super::Reactor;
use super::shared::Desk;
use super::status::RecordingStatus;
use crate::record::{DumpTeller, Dumped, Recording};
use std::io;
use std::sync::atomic::Ordering;

impl<E: Desk> Reactor<E> {
    /// From now on, whatever the engine is told goes through this recording.
    pub fn record(&mut self, recording: Recording) {
        self.shared.door.recording = Some(recording);
    }

    /// Nothing more will be recorded. `mark` says that the server ended in order.
    pub fn end_recording(&mut self, mark: bool) {
        let now = self.shared.door.clock.now();
        if let Some(mut recording) = self.shared.door.recording.take() {
            recording.end(now, mark);
        }
    }

    /// Writes down the last minute, for whoever has to find out what led to a panic.
    pub fn dump_after_panic(&mut self) -> Option<io::Result<Dumped>> {
        self.shared.door.recording.as_mut()?.dump_after_panic()
    }

    pub(super) fn record_turn(&mut self) {
        let now = self.shared.now;
        if let Some(recording) = &mut self.shared.door.recording {
            recording.turn_ended(now);
        }
    }

    pub(super) fn dump(&mut self, tell: DumpTeller) {
        let now = self.shared.door.clock.now();
        match &mut self.shared.door.recording {
            Some(recording) => recording.dump(now, tell),
            None => tell(Err("nothing is recorded (--no-flight-recorder)".to_owned())),
        }
    }

    pub(super) fn dump_for_signal(&mut self) {
        self.dump(Box::new(|dumped| match dumped {
            Ok(dumped) => {
                let Dumped { path, bytes, events, .. } = dumped;
                let path = path.display();
                tracing::info!("SIGUSR2: the last {events} events are in {path} ({bytes} bytes)");
            }
            Err(why) => tracing::error!("SIGUSR2: no dump was written: {why}"),
        }));
    }

    pub(super) fn recording_status(&self) -> RecordingStatus {
        let Some(recording) = &self.shared.door.recording else {
            return RecordingStatus::default();
        };
        let counts = recording.counts();
        RecordingStatus {
            events: recording.events(),
            frames: counts.frames.load(Ordering::Relaxed),
            gaps: counts.gaps.load(Ordering::Relaxed),
            dumps: counts.dumps.load(Ordering::Relaxed),
        }
    }
}
