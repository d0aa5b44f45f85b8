//! Bugs on purpose. The feature `planted` compiles them in, `Config::planted` chooses one of them,
//! and the simulator must find it (`cargo sim --planted`): what it cannot find here, it would not
//! find elsewhere either. Without the feature every `planted!` is `false` and nothing is left.
//!
//! The invariant: each passes all unit, property and golden tests, so that it is the simulator
//! alone that stands between it and a release. `docs/planted.md` says how that is checked.

/// Whether bugs are compiled in. The program does not build where they are.
pub const IS_PLANTED: bool = cfg!(feature = "planted");

/// Whether this bug is the one that is planted, as what holds `planted` says.
#[cfg(feature = "planted")]
macro_rules! planted {
    ($holder:expr, $number:literal) => {
        $holder.planted == $number
    };
}

/// No bug is compiled in.
#[cfg(not(feature = "planted"))]
macro_rules! planted {
    ($holder:expr, $number:literal) => {{
        let _ = &$holder;
        false
    }};
}

/// One bug.
#[derive(Clone, Copy, Debug)]
pub struct Bug {
    pub number: u32,
    pub name: &'static str,
    /// The race of spec/storage §8.1, or the invariant of §8.2 where there is no race.
    pub race: &'static str,
    pub wrong: &'static str,
    /// What the simulator would need to find it; empty where it must find it.
    pub missing: &'static str,
}

/// What `Config` chooses where nothing else is said: the number that `KVTIDE_PLANTED` held when
/// this was compiled, so that any test suite can be built with a bug planted.
#[cfg(feature = "planted")]
pub const DEFAULT: u32 = match option_env!("KVTIDE_PLANTED") {
    Some(number) => match u32::from_str_radix(number, 10) {
        Ok(number) => number,
        Err(_) => panic!("KVTIDE_PLANTED is a number"),
    },
    None => 0,
};

const fn bug(number: u32, race: &'static str, name: &'static str, wrong: &'static str) -> Bug {
    Bug { number, name, race, wrong, missing: "" }
}

const fn missing(what: &'static str, bug: Bug) -> Bug {
    Bug { missing: what, ..bug }
}

/// All of them, by number from 1.
pub const BUGS: &[Bug] = &[
    bug(
        1,
        "R-1",
        "expiry by place",
        "a session that idles out leaves its lease timer armed, and the timer ends the \
         leases of whoever has its place by then",
    ),
    bug(
        2,
        "R-3",
        "a late commit inherits",
        "a commit of slots whose write TTL has passed publishes those that another \
         request has been lent under the same name",
    ),
    bug(
        3,
        "R-4",
        "outrun slots",
        "a commit also gives back the slots of its name whose write TTL has passed, \
         though their writer is still at work",
    ),
    missing(
        "the write TTL (at most 20 s) always ends before a reap by silence (at least 30 s)",
        bug(
            4,
            "R-4",
            "a dead body",
            "the end of a connection gives back the memory of a reaped instance's body, \
         though its last bytes are still being written",
        ),
    ),
    bug(
        5,
        "R-5",
        "a body outlives its instance",
        "a reservation into which a body is arriving is not given up with its instance",
    ),
    bug(
        6,
        "R-5",
        "an old body's end",
        "the end of a body that comes twice ends whatever body has its ticket's place, \
         and publishes what is not there yet",
    ),
    bug(
        7,
        "R-3",
        "an old answer's end",
        "the end of an answer that comes twice ends whatever answer has its ticket's \
         place",
    ),
    bug(
        8,
        "R-11",
        "two writers of one name",
        "a commit is not told from that of another request which stores the same chunks",
    ),
    bug(
        9,
        "R-14",
        "two readers of one name",
        "a reader's release is not told from that of another instance which reads for \
         the same request",
    ),
    bug(
        10,
        "R-15",
        "only its own kind is replaced",
        "a lookup under a live request id ends the one before only where it names the \
         same model, tenant and world",
    ),
    missing(
        "more between two turns than late ticks: the leases of what the pass would take next",
        bug(
            11,
            "R-19",
            "chosen in one turn, evicted in the next",
            "the eviction pass goes on with the object that it had chosen before its turn ended, \
         though it was leased meanwhile",
        ),
    ),
    missing(
        "more windows over several turns, and leases while they are emptied",
        bug(
            12,
            "R-19",
            "a draining run is a free run",
            "a run that is being emptied counts as one that holds nothing back, though it \
         was leased meanwhile",
        ),
    ),
    missing(
        "more between two turns than late ticks: evictions while a lookup goes on",
        bug(
            13,
            "R-20",
            "probed in one turn, leased in the next",
            "a lookup goes on with what it had found before its turn ended",
        ),
    ),
    bug(
        14,
        "R-25",
        "a cleared read",
        "a reader's commit also ends other requests' reads of the same range which a \
         forced clear has taken",
    ),
    bug(
        15,
        "R-26",
        "an end that names its chunks",
        "the end of a session that names its chunks drops the leases of its running lookup",
    ),
    bug(
        16,
        "R-26",
        "a linger without an idle end",
        "a session that lingers is not forgotten when its own TTL has passed",
    ),
    bug(
        17,
        "R-27",
        "any release is good",
        "a release that meets a running lookup is good, whatever it names",
    ),
    bug(
        18,
        "R-28",
        "a transfer is no sign of life",
        "an instance that has just stored is reaped for its silence",
    ),
    bug(
        19,
        "R-28",
        "silence counted anew",
        "an instance that was heard of may be silent from its alarm on, not from its \
         last word on",
    ),
    missing(
        "workers that come back with another layout and move their bytes in another way",
        bug(
            20,
            "R-28",
            "another layout, the same mode",
            "an instance that comes back with another layout is still taken for one that \
         moves its bytes as before",
        ),
    ),
    bug(
        21,
        "R-31",
        "a result for each connection",
        "a lookup's result is given to every connection that asks",
    ),
    bug(22, "R-31", "a result for each wait", "waits for one lookup are all given its result"),
    bug(
        23,
        "R-38",
        "a cleared commit inherits",
        "a commit of slots that a forced clear has taken publishes those that another \
         request has been lent under the same name",
    ),
    bug(
        24,
        "I-48",
        "any layout is good",
        "a lease is good for a reader whose objects have another layout",
    ),
    bug(
        25,
        "I-28",
        "one cell is trimmed",
        "of the chunk in which a hit ends, only the last leased row is given back",
    ),
    bug(
        26,
        "I-11",
        "a reader is no user",
        "a session that is read from is forgotten as if it were idle",
    ),
    bug(
        27,
        "I-26",
        "readers of one name",
        "a worker's reads of one range are bounded over all requests",
    ),
    bug(
        28,
        "I-48",
        "any world is good",
        "a worker may store and read as one of another world size",
    ),
    bug(
        29,
        "I-11",
        "a linger beyond the lease",
        "the end of a session prolongs leases that were about to run out",
    ),
    bug(
        30,
        "R-6",
        "memory ahead of its mapping",
        "an arena that has grown by part of a block lends the whole block",
    ),
    missing(
        "more stores of one key by two instances",
        bug(
            31,
            "R-11",
            "an end takes the next writer along",
            "a writer's abort takes back whatever is reserved under its keys by then",
        ),
    ),
    bug(
        32,
        "R-27",
        "a release during a lookup",
        "a release that meets a running lookup gives back what that has leased so far",
    ),
    bug(
        33,
        "I-11",
        "a read that is never counted off",
        "reads of a reaped instance count for ever",
    ),
    bug(
        34,
        "I-37",
        "a watermark of what has grown",
        "while the arena grows, eviction starts at a part of what there is, not of what \
         there will be",
    ),
    bug(
        35,
        "R-4",
        "a body is no loan",
        "the end of a connection gives back the slots into which a body is still being written",
    ),
    bug(
        36,
        "R-6",
        "a chunk without a place",
        "of a body that is cut, chunks are published that came in the place of those which had \
         none",
    ),
    bug(
        37,
        "R-3",
        "a body without a write TTL",
        "a reservation into which a body is arriving has no write TTL any more",
    ),
    missing(
        "forced clears between a store below L1 and the next commit of its key",
        bug(
            38,
            "R-2",
            "renewed while it is written",
            "a key that is committed again while an older object of it is being stored takes \
             that one's place in its demotion",
        ),
    ),
    missing(
        "lookups that wait below L1 for as long as they may",
        bug(
            39,
            "R-7",
            "out of time, with open places",
            "a lookup that has waited as long as it may hits what is still being loaded",
        ),
    ),
    bug(
        40,
        "R-8",
        "given up, given back",
        "the memory of a load that is given up comes back before its adapter has let go \
         of it",
    ),
    bug(41, "R-9", "held for nobody", "a load that is given up leaves its object held below L1"),
    bug(
        42,
        "R-10",
        "evicted without a word",
        "nobody is told of an object that left L1 before its store",
    ),
    bug(43, "R-21", "behind a hole", "a lookup that has begun to load stops at what L1 has"),
    bug(
        44,
        "R-22",
        "planned, not held",
        "what a lookup is to load may be evicted from its tier before that",
    ),
    bug(
        45,
        "R-24",
        "let go while it is read",
        "a load that is given up lets go of its object below L1 before its adapter has \
         read it",
    ),
    bug(46, "R-29", "closed in flight", "an adapter that leaves is closed with orders under way"),
    bug(
        47,
        "R-30",
        "planned before it left",
        "what waits to be loaded from an adapter is ordered although that leaves",
    ),
    bug(
        48,
        "R-36",
        "alone in the queue",
        "a lookup that has waited for its turn waits on where the last adapter has left",
    ),
    bug(49, "I-7", "failed, published", "what a copy was to store is published although it failed"),
    bug(
        50,
        "R-25",
        "an end amid a copy",
        "the end of an instance gives back the memory into which its blocks are being copied",
    ),
    bug(
        51,
        "P1",
        "skipped from the start",
        "tokens to be skipped are counted from the start of the prompt, not of the range",
    ),
    bug(
        52,
        "I-6",
        "held for the one before",
        "memory is not let go when its instance registers other memory",
    ),
    bug(
        53,
        "F09",
        "memory without its engine",
        "the end of a connection leaves the memory attached that was registered over it",
    ),
    bug(
        54,
        "I-6",
        "whichever is attached last",
        "of two registrations under way the one holds whose memory is attached last",
    ),
    bug(
        55,
        "P1",
        "the wrong end of a window",
        "of a chunk that is cut by a window, the first blocks are copied in place of the last",
    ),
    bug(
        56,
        "R-3",
        "ordered, published",
        "what is to be stored is readable from the order of its copy on",
    ),
];
