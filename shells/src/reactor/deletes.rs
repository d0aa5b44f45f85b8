//! One request of an operator that names many objects: the engine is asked for each by itself, and
//! the operator gets one answer when the last of them has ended.

use super::Reactor;
use super::notes::{OperatorRequest, OperatorTeller};
use super::shared::Desk;
use crate::object_key::ObjectKey;
use kvtide_core::effect::OperatorAnswer;
use kvtide_core::names::AdapterId;
use std::sync::{Arc, Mutex, PoisonError};

/// What has come together so far. Told when its last share is dropped, whichever way that is.
struct Tally {
    deleted: u32,
    skipped: u32,
    full: Option<&'static str>,
    tell: Option<OperatorTeller>,
}

impl<E: Desk> Reactor<E> {
    pub(super) fn delete_all(
        &mut self,
        keys: Vec<ObjectKey>,
        (from_l1, adapter, force): (bool, Option<AdapterId>, bool),
        tell: OperatorTeller,
    ) {
        let tally = Tally { deleted: 0, skipped: 0, full: None, tell: Some(tell) };
        let tally = Arc::new(Mutex::new(tally));
        for key in keys {
            let share = tally.clone();
            let ask = OperatorRequest::Delete { key, from_l1, adapter, force };
            // A panic elsewhere leaves numbers that are numbers all the same.
            self.operate(
                &ask,
                Box::new(move |answer| {
                    share.lock().unwrap_or_else(PoisonError::into_inner).add(answer);
                }),
            );
        }
    }
}

impl Tally {
    fn add(&mut self, answer: OperatorAnswer) {
        match answer {
            OperatorAnswer::Deleted { deleted, skipped } => {
                self.deleted += deleted;
                self.skipped += skipped;
            }
            OperatorAnswer::Full(bound) => self.full = Some(bound),
            OperatorAnswer::Done | OperatorAnswer::Removed(_) => {}
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        let Some(tell) = self.tell.take() else { return };
        let (deleted, skipped) = (self.deleted, self.skipped);
        tell(self.full.map_or(OperatorAnswer::Deleted { deleted, skipped }, OperatorAnswer::Full));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(answers: &[OperatorAnswer]) -> OperatorAnswer {
        let heard = Arc::new(Mutex::new(None));
        let hear = heard.clone();
        let tell: OperatorTeller = Box::new(move |answer| {
            let before = hear.lock().expect("nobody panics here").replace(answer);
            assert_eq!(before, None, "exactly one answer");
        });
        let mut tally = Tally { deleted: 0, skipped: 0, full: None, tell: Some(tell) };
        answers.iter().for_each(|answer| tally.add(*answer));
        drop(tally);
        heard.lock().expect("nobody panics here").take().expect("an answer comes")
    }

    #[test]
    fn an_operator_hears_once_and_the_sum() {
        let one = OperatorAnswer::Deleted { deleted: 1, skipped: 0 };
        let other = OperatorAnswer::Deleted { deleted: 1, skipped: 1 };
        assert_eq!(told(&[one, other]), OperatorAnswer::Deleted { deleted: 2, skipped: 1 });
        assert_eq!(told(&[]), OperatorAnswer::Deleted { deleted: 0, skipped: 0 });
        assert_eq!(told(&[one, OperatorAnswer::Full("x")]), OperatorAnswer::Full("x"));
    }
}
