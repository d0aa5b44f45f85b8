//! Whose memory is whose, and from when on bytes can be read.

use super::driver::{Driver, SCHEDULER, cases, config, instance};
use kvtide_core::config::{Config, PoolKind};
use kvtide_core::effect::Answer;
use kvtide_core::event::BodyOutcome;
use kvtide_core::time::Duration;
use kvtide_sim::calls::Call;
use proptest::prelude::*;

/// What happens to a client between its `prepare` and its last byte.
#[derive(Clone, Debug)]
enum Trouble {
    WriteTtl,
    ReadTtl,
    Unregister,
    Clear { force: bool },
    OtherStores { document: u64, chunks: u32 },
    Reregister,
}

fn trouble() -> impl Strategy<Value = Trouble> {
    prop_oneof![
        1 => Just(Trouble::WriteTtl),
        1 => Just(Trouble::ReadTtl),
        1 => Just(Trouble::Unregister),
        1 => any::<bool>().prop_map(|force| Trouble::Clear { force }),
        3 => (1..5u64, 1..9u32)
            .prop_map(|(document, chunks)| Trouble::OtherStores { document, chunks }),
        1 => Just(Trouble::Reregister),
    ]
}

fn meet(driver: &mut Driver, trouble: &Trouble) {
    match trouble {
        Trouble::WriteTtl => driver.pass(Duration::from_secs(21)),
        Trouble::ReadTtl => driver.pass(Duration::from_secs(11)),
        Trouble::Unregister => {
            driver.ask(1, Call::Unregister { instance: instance(0) });
        }
        Trouble::Clear { force } => {
            driver.ask(SCHEDULER, Call::Clear { force: *force });
        }
        Trouble::OtherStores { document, chunks } => driver.store(*document, 0..*chunks),
        Trouble::Reregister => driver.register(0),
    }
}

proptest! {
    #![proptest_config(cases(128))]

    /// A writer may write until its commit and a reader may read, whatever happens meanwhile:
    /// their memory is nobody else's. The bench fails if it is lent twice.
    #[test]
    fn i2_memory_waits_for_its_last_user(
        chunks in 1..9u32,
        troubles in proptest::collection::vec(trouble(), 1..10),
    ) {
        let mut driver = Driver::new(config(), 1, 60);
        driver.store(8, 0..3);
        driver.lookup("reader", 8, 3, 1);
        let read = driver.range("reader", 8, Some(0), 0..3);
        driver.ask(1, Call::PrepareRetrieve { instance: instance(0), range: read });
        if let Some(sent) = driver.streams.iter().position(|stream| !stream.is_body) {
            driver.end_stream(sent, 0, BodyOutcome::Whole);
        }
        let written = driver.range("writer", 0, Some(0), 0..chunks);
        driver.ask(1, Call::PrepareStore { instance: instance(0), range: written });
        let own = driver.holdings.clone();
        driver.holdings.clear();
        for trouble in &troubles {
            meet(&mut driver, trouble);
        }
        // The reader still sees its own bytes, and the writer harms nobody's.
        driver.holdings = own;
        while !driver.holdings.is_empty() {
            driver.commit(0);
        }
        driver.bench.check_memory().expect("no committed object was overwritten");
        driver.leave();
    }

    /// No way of leaving publishes what was not committed.
    #[test]
    fn i7_what_was_not_committed_is_never_readable(
        chunks in 1..6u32,
        troubles in proptest::collection::vec(trouble(), 0..6),
        leaves: bool,
    ) {
        let mut driver = Driver::new(config(), 1, 20);
        let range = driver.range("writer", 0, Some(0), 0..chunks);
        driver.ask(1, Call::PrepareStore { instance: instance(0), range });
        prop_assert_eq!(driver.lookup("reader", 0, chunks, 1), 0);
        for trouble in &troubles {
            meet(&mut driver, trouble);
        }
        if leaves {
            driver.disconnect(1);
        }
        driver.register(0);
        prop_assert_eq!(driver.lookup("reader", 0, chunks, 1), 0);
    }

    /// A body that ends early publishes the chunks that came whole, and says false.
    #[test]
    fn i7_a_cut_body_publishes_whole_chunks_only(
        chunks in 1..6u32,
        complete in 0..6u32,
        outcome in prop_oneof![
            Just(BodyOutcome::Short), Just(BodyOutcome::Malformed), Just(BodyOutcome::Cut)
        ],
        prepared: bool,
        shared: bool,
    ) {
        let complete = complete.min(chunks);
        let pool = if shared { PoolKind::Shared } else { PoolKind::Private };
        let mut driver = Driver::new(Config { pool, ..config() }, 1, 20);
        let range = driver.range("writer", 0, Some(0), 0..chunks);
        if prepared {
            let range = range.clone();
            driver.ask(1, Call::PrepareStore { instance: instance(0), range });
        }
        let call = Call::CommitStore { instance: instance(0), range, inline_bytes: 1 };
        driver.ask(1, call);
        driver.end_stream(0, complete, outcome);
        prop_assert_eq!(driver.lookup("reader", 0, chunks, 1), complete as u64);
    }
}

/// A commit that comes after its write TTL says false, and its writer had its memory until then.
#[test]
fn i6_a_late_commit_is_refused() {
    let mut driver = Driver::new(config(), 1, 20);
    let range = driver.range("writer", 0, Some(0), 0..3);
    driver.ask(1, Call::PrepareStore { instance: instance(0), range });
    driver.pass(Duration::from_secs(21));
    let status = driver.bench.engine().status();
    assert_eq!((status.staged_objects, status.condemned_objects), (0, 3));
    assert_eq!(driver.commit(0), Some(Answer::Bool(false)));
    assert_eq!(driver.bench.engine().status().condemned_objects, 0);
    assert_eq!(driver.lookup("reader", 0, 3, 1), 0);
}

/// Objects of different tenants, ranks and layouts never share a key.
#[test]
fn i48_another_tenant_finds_nothing() {
    let mut driver = Driver::new(config(), 2, 20);
    driver.store(0, 0..3);
    let mut range = driver.range("stranger", 0, None, 0..3);
    range.salt = "other".into();
    driver.ask(SCHEDULER, Call::Lookup { range });
    assert_eq!(driver.query("stranger"), 0);
    assert_eq!(driver.lookup("friend", 0, 3, 1), 3);
    let mut stolen = driver.range("friend", 0, Some(0), 0..3);
    stolen.salt = "other".into();
    let call = Call::PrepareRetrieve { instance: instance(0), range: stolen };
    assert_eq!(driver.ask(1, call), Some(Answer::RetrieveMiss));
}
