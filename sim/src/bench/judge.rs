//! One event after another: what the model is told of it, and what it says of the answers.

use super::{Bench, Seen};
use crate::calls::Call;
use crate::model::News;
use crate::transcript::Input;
use kvtide_core::effect::{Answer, Outbox};
use kvtide_core::fact::Fact;
use kvtide_core::time::Instant;

impl Bench {
    pub(super) fn judge_input(
        &mut self,
        now: Instant,
        input: &Input,
        news: &News,
        out: &Outbox,
    ) -> Result<Vec<Seen>, String> {
        let mut seen = Vec::new();
        match input {
            Input::Tick => {
                // A wait may time out and its lookup end within one tick.
                self.answers(out, news, &mut seen, |answer| *answer == Answer::None)?;
                self.model.hear_stores(news)?;
                self.orders(out, &mut seen)?;
                self.model.settle(self.settled(now))?;
            }
            Input::Asked { call: Call::Lookup { range }, .. } => {
                self.model.lookup(range, news.table_full)?;
            }
            Input::Asked { call: Call::EndSession { request, .. }, .. } => {
                self.model.end_session(request);
            }
            Input::Asked { call: Call::Clear { force }, .. }
            | Input::OperatorClear { force, .. } => {
                self.count_clear(out);
                self.model.clear(*force);
            }
            Input::Asked { .. }
            | Input::Restarted
            | Input::OperatorQuota { .. }
            | Input::AdapterAdded { .. }
            | Input::AdapterScanEnded { .. }
            | Input::TierEnded { .. }
            | Input::AttachEnded { .. } => {}
            Input::CopyEnded { ticket, whole } => {
                self.copy_ended(*ticket, *whole, news, out)?;
            }
            Input::OperatorRemove { adapter, .. } => self.model.adapter_removed(*adapter),
            Input::AdapterScanned { adapter, found } => {
                let is_skip = |fact: &Fact| matches!(fact, Fact::L2ScanSkipped { .. });
                let skips = out.facts.iter().any(is_skip);
                self.model.adapter_scanned(*adapter, found, skips);
            }
            Input::ArenaGrown { bytes } => self.model.grow(*bytes),
            Input::ConnectionEnded { connection } => self.model.connection_ended(*connection),
            Input::SendEnded { ticket, outcome } => {
                let known = self.model.send_ended(*ticket, *outcome, news)?;
                self.stale(known, out)?;
            }
            Input::ReceiveEnded { ticket, complete, outcome } => {
                let got = self.answer_of_body(out);
                let known = self.model.receive_ended(*ticket, (*complete, *outcome), news, got)?;
                self.stale(known, out)?;
            }
        }
        self.answers(out, news, &mut seen, |_| true)?;
        self.attachments(input, out, &mut seen)?;
        if !matches!(input, Input::Tick) {
            self.model.hear_stores(news)?;
            self.orders(out, &mut seen)?;
        }
        Ok(seen)
    }
}
