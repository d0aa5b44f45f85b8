//! The head of every part of a recording: which recording it is a part of, who wrote it, and the
//! configuration that its engine ran with. Its one invariant: a header that was read gives an
//! engine that decides as the recorded one did.

use super::bytes::{Fault, Input, Malformed, Write};
use super::digest::Digest;
use crate::config::{Config, HashAlgorithm, Limits, PolicyKind, PoolKind};
use crate::config::{PrefetchPolicy, StorePolicy, TransferModes};
use crate::time::Duration;
use alloc::string::String;
use alloc::vec::Vec;

/// The format that is written. Earlier ones are read.
pub const VERSION: u16 = 3;

#[derive(Clone, Debug)]
pub struct Header {
    /// Random; the same in all parts of one recording.
    pub recording: u64,
    /// `--record-tokens`: token ids of chunks are told, too.
    pub tokens: bool,
    /// The version of kvtide that wrote it.
    pub writer: String,
    /// Without the server's id, on which no decision depends.
    pub config: Config,
}

impl Header {
    pub fn bytes(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.fixed_u64(self.recording);
        body.byte(self.tokens.into());
        body.fixed_u64(self.config.wall_nanos);
        body.text(&self.writer);
        let settings = settings(&self.config);
        body.number(settings.len() as u64);
        for (number, value) in settings {
            body.number(number);
            body.number(value);
        }
        let mut bytes = Vec::from(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.fixed_u32(body.len() as u32);
        bytes.extend_from_slice(&body);
        let sum = checksum(&[&bytes]);
        bytes.fixed_u64(sum);
        bytes
    }

    /// Whether a file that begins with these bytes says that it is a recording.
    pub fn is_at(beginning: &[u8]) -> bool {
        beginning.starts_with(&MAGIC)
    }

    /// The header at the beginning of a file, and its length.
    pub fn read(file: &[u8]) -> Result<(Header, usize), Malformed> {
        let mut input = Input::new(file, 0);
        let begins = MAGIC.starts_with(&file[..file.len().min(MAGIC.len())]);
        if !begins || file.is_empty() {
            return Err(input.fault(Fault::NotARecording));
        }
        input.take(MAGIC.len(), WHAT)?;
        let start = input;
        let version = u16::from_le_bytes(input.array(WHAT)?);
        if version == 0 || version > VERSION {
            return Err(start.fault(Fault::Version { found: version }));
        }
        let bytes = input.fixed_u32(WHAT)? as usize;
        let begin = input.offset();
        let mut body = Input::new(input.take(bytes, WHAT)?, begin);
        let start = input;
        let sum = input.fixed_u64(WHAT)?;
        if sum != checksum(&[&file[..start.offset() as usize]]) {
            let fault = Fault::Checksum { what: WHAT };
            return Err(Malformed { offset: 0, fault });
        }
        Ok((Header::read_body(&mut body)?, input.offset() as usize))
    }

    fn read_body(body: &mut Input<'_>) -> Result<Header, Malformed> {
        let recording = body.fixed_u64(WHAT)?;
        let tokens = body.flag(WHAT)?;
        let wall_nanos = body.fixed_u64(WHAT)?;
        let writer = body.text(64, WHAT)?.into();
        let mut config = Config { wall_nanos, ..Config::default() };
        let start = *body;
        for _ in 0..body.number(WHAT)? {
            let start = *body;
            let (number, value) = (body.number(WHAT)?, body.number(WHAT)?);
            // A setting that is not known could change any decision.
            set(&mut config, number, value)
                .ok_or_else(|| start.fault(Fault::Value { what: "a setting of the engine" }))?;
        }
        if config.check().is_err() {
            return Err(start.fault(Fault::Value { what: "the configuration of the engine" }));
        }
        Ok(Header { recording, tokens, writer, config })
    }
}

/// Every setting by number. Numbers are never given to another one. Those from 26 on came with
/// version 2: an engine that was recorded before had no lower tiers, and no use for them. 34 came
/// with version 3, and server-driven transfer.
fn settings(config: &Config) -> Vec<(u64, u64)> {
    let Config {
        // Taken apart, so that a new setting is not forgotten.
        chunk_size,
        hash_algorithm,
        transfer_modes,
        pool,
        l1_bytes,
        l1_align_bytes,
        l1_objects_max,
        policy,
        watermark_ppm,
        ratio_ppm,
        write_ttl,
        read_ttl,
        session_ttl,
        reap_after,
        registration_grace,
        store_policy,
        prefetch_policy,
        prefetch_max,
        prefill_tokens_per_second,
        null_block,
        seed,
        incarnation,
        wall_nanos: _,
        server_id: _,
        limits,
        #[cfg(feature = "planted")]
            planted: _,
    } = config;
    let settings = [
        (1, (*chunk_size).into()),
        (2, number_in(&HASHES, *hash_algorithm)),
        (3, number_in(&MODES, *transfer_modes)),
        (4, number_in(&POOLS, *pool)),
        (5, *l1_bytes),
        (6, *l1_align_bytes),
        (7, *l1_objects_max as u64),
        (8, number_in(&POLICIES, *policy)),
        (9, *watermark_ppm),
        (10, *ratio_ppm),
        (11, nanos(*write_ttl)),
        (12, nanos(*read_ttl)),
        (13, nanos(*session_ttl)),
        (14, nanos(*reap_after)),
        (15, nanos(*registration_grace)),
        (16, *seed),
        (17, *incarnation),
        (26, number_in(&STORE_POLICIES, *store_policy)),
        (27, number_in(&PREFETCH_POLICIES, *prefetch_policy)),
        (28, *prefetch_max as u64),
        (29, *prefill_tokens_per_second),
        (34, null_block.map_or(0, |id| u64::from(id) + 1)),
    ];
    settings.into_iter().chain(settings_of_limits(limits)).collect()
}

fn settings_of_limits(limits: &Limits) -> [(u64, u64); 12] {
    let Limits {
        // Likewise.
        work_units,
        sessions,
        lease_cells,
        instances,
        told,
        tickets,
        waits,
        lent_ppm,
        flights,
        demotions,
        demoting_ppm,
        loads,
    } = *limits;
    [
        (18, work_units as u64),
        (19, sessions as u64),
        (20, lease_cells as u64),
        (21, instances as u64),
        (22, told as u64),
        (23, tickets as u64),
        (24, waits as u64),
        (25, lent_ppm),
        (30, flights as u64),
        (31, demotions as u64),
        (32, demoting_ppm),
        (33, loads as u64),
    ]
}

fn set(config: &mut Config, number: u64, value: u64) -> Option<()> {
    let count = usize::try_from(value).ok();
    let time = Duration::from_nanos(value);
    let limits = &mut config.limits;
    match number {
        1 => config.chunk_size = value.try_into().ok()?,
        2 => config.hash_algorithm = *HASHES.get(count?)?,
        3 => config.transfer_modes = *MODES.get(count?)?,
        4 => config.pool = *POOLS.get(count?)?,
        5 => config.l1_bytes = value,
        6 => config.l1_align_bytes = value,
        7 => config.l1_objects_max = count?,
        8 => config.policy = *POLICIES.get(count?)?,
        9 => config.watermark_ppm = value,
        10 => config.ratio_ppm = value,
        11 => config.write_ttl = time,
        12 => config.read_ttl = time,
        13 => config.session_ttl = time,
        14 => config.reap_after = time,
        15 => config.registration_grace = time,
        16 => config.seed = value,
        17 => config.incarnation = value,
        18 => limits.work_units = count?,
        19 => limits.sessions = count?,
        20 => limits.lease_cells = count?,
        21 => limits.instances = count?,
        22 => limits.told = count?,
        23 => limits.tickets = count?,
        24 => limits.waits = count?,
        25 => limits.lent_ppm = value,
        26 => config.store_policy = *STORE_POLICIES.get(count?)?,
        27 => config.prefetch_policy = *PREFETCH_POLICIES.get(count?)?,
        28 => config.prefetch_max = count?,
        29 => config.prefill_tokens_per_second = value,
        34 => {
            let id = value.checked_sub(1).map(u32::try_from).transpose();
            config.null_block = id.ok()?;
        }
        30 => limits.flights = count?,
        31 => limits.demotions = count?,
        32 => limits.demoting_ppm = value,
        33 => limits.loads = count?,
        _ => return None,
    }
    Some(())
}

pub(super) fn number_in<T: PartialEq>(all: &[T], value: T) -> u64 {
    all.iter().position(|known| *known == value).expect("every variant is listed") as u64
}

/// 584 years are as good as for ever.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Of several pieces as if they were one; finds what a disk or a copy has changed.
pub(super) fn checksum(pieces: &[&[u8]]) -> u64 {
    let mut digest = Digest::START;
    pieces.iter().for_each(|piece| digest.bytes(piece));
    digest.value()
}

const HASHES: [HashAlgorithm; 2] = [HashAlgorithm::Blake3, HashAlgorithm::Sha256Cbor];
const MODES: [TransferModes; 3] =
    [TransferModes::Auto, TransferModes::EngineDriven, TransferModes::ServerDriven];
const POOLS: [PoolKind; 2] = [PoolKind::Shared, PoolKind::Private];
pub(super) const POLICIES: [PolicyKind; 4] =
    [PolicyKind::Lru, PolicyKind::Arc, PolicyKind::IsolatedLru, PolicyKind::Noop];
const STORE_POLICIES: [StorePolicy; 2] = [StorePolicy::Default, StorePolicy::SkipL1];
const PREFETCH_POLICIES: [PrefetchPolicy; 2] = [PrefetchPolicy::Default, PrefetchPolicy::Retain];
const MAGIC: [u8; 8] = *b"KVTIDREC";
const WHAT: &str = "the header";

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let config = Config {
            chunk_size: 16,
            policy: PolicyKind::Arc,
            pool: PoolKind::Private,
            seed: u64::MAX,
            read_ttl: Duration::from_millis(1500),
            wall_nanos: 1_796_007_464_000_000_000,
            store_policy: StorePolicy::SkipL1,
            prefetch_policy: PrefetchPolicy::Retain,
            prefill_tokens_per_second: 5000,
            limits: Limits { work_units: 7, loads: 9, ..Limits::default() },
            ..Config::default()
        };
        Header { recording: 9, tokens: true, writer: "0.1.0".into(), config }
    }

    #[test]
    fn a_header_comes_back_with_every_setting() {
        let written = header();
        let mut bytes = written.bytes();
        let length = bytes.len();
        bytes.extend_from_slice(b"what follows");
        let (read, end) = Header::read(&bytes).expect("it was just written");
        assert_eq!((end, read.recording, read.tokens, &*read.writer), (length, 9, true, "0.1.0"));
        assert_eq!(settings(&read.config), settings(&written.config));
        assert_eq!(read.config.wall_nanos, written.config.wall_nanos);
    }

    #[test]
    fn whatever_is_cut_or_changed_is_named() {
        let bytes = header().bytes();
        for end in 0..bytes.len() {
            let fault = Header::read(&bytes[..end]).expect_err("it is not whole");
            let expected =
                if end == 0 { Fault::NotARecording } else { Fault::Truncated { what: WHAT } };
            assert_eq!(fault.fault, expected, "{end} bytes");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(Header::read(&changed).is_err(), "byte {at}");
        }
        let mut newer = bytes;
        newer[8] = 4;
        let fault = Header::read(&newer).expect_err("from the future");
        assert_eq!(fault, Malformed { offset: 8, fault: Fault::Version { found: 4 } });
    }
}
