//! A server of which nothing is left, and the next one: it begins with nothing in memory, so
//! whatever it serves was stored after its start, or lay in a lower tier.

use super::Bench;
use kvtide_core::config::Config;

impl Bench {
    /// Engine, model, arena and open requests of the old server are gone. The run goes on: its
    /// transcript, what it has met, and the names of its requests.
    pub(super) fn restart(&mut self) {
        let config = self.engine.config();
        let config = Config { incarnation: config.incarnation + 1, ..config.clone() };
        let old = std::mem::replace(self, Bench::new(config, 0));
        self.reach = old.reach;
        self.transcript = old.transcript;
        self.ledger = old.ledger;
        self.devices = old.devices;
        self.replies = old.replies;
        self.now = old.now;
        self.rows_max = old.rows_max;
        self.chunks_max = old.chunks_max;
        self.events = old.events;
        self.kept = old.kept;
    }
}
