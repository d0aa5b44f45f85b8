//! Lines for people: one for each event, with what it brought about.

use super::counts::seconds;
use super::flags::ReplayFlags;
use kvtide_core::event::{Ask, Event, Keys, OperatorAsk};
use kvtide_core::names::Ticket;
use kvtide_core::recording::{Entry, Happened};
use std::collections::VecDeque;
use std::str::EscapeDebug;

/// Keeps the lines that are to be shown, and the last ones in case something goes wrong.
#[derive(Clone, Debug)]
pub struct Transcript {
    around: Option<u64>,
    request: Option<u64>,
    lines: usize,
    /// What is shown in any case.
    wanted: Vec<String>,
    /// The last lines; those before the time that is looked for.
    last: VecDeque<String>,
}

impl Transcript {
    pub fn new(flags: &ReplayFlags) -> Transcript {
        let ReplayFlags { around, request, lines, .. } = *flags;
        Transcript { around, request, lines, wanted: Vec::new(), last: VecDeque::new() }
    }

    pub fn add(&mut self, entry: &Entry<'_>) {
        let text = line(entry);
        if let Some(around) = self.around
            && entry.at.0 >= around
            && self.wanted.len() < self.lines
        {
            if self.wanted.is_empty() {
                let before = self.last.len().min(self.lines / 2);
                self.wanted.extend(self.last.range(self.last.len() - before..).cloned());
            }
            self.wanted.push(text.clone());
        }
        if let Some(request) = self.request
            && self.wanted.len() < self.lines
            && request_of(entry).is_some_and(|of| u64::from_str_radix(of, 16) == Ok(request))
        {
            self.wanted.push(text.clone());
        }
        if self.last.len() >= self.lines.max(1) {
            self.last.pop_front();
        }
        self.last.push_back(text);
    }

    /// What was asked for; where nothing was and something went wrong, the lines before that.
    pub fn lines(&self, is_failure: bool) -> Vec<String> {
        if is_failure && self.around.is_none() && self.request.is_none() {
            return self.last.iter().cloned().collect();
        }
        self.wanted.clone()
    }
}

/// Time, number, what happened, and what came of it.
pub fn line(entry: &Entry<'_>) -> String {
    let (at, number, kind) = (seconds(entry.at.0), entry.number, entry.kind);
    let details = match &entry.happened {
        Happened::Event(event) => describe(event),
        Happened::Scanned(scan) => {
            format!(" adapter={} {} objects", scan.adapter.0, scan.objects().len())
        }
        Happened::Finish | Happened::Gap | Happened::End => String::new(),
        Happened::Tokens { first_chunk, chunks, encoded } => {
            return format!(
                "{at:>14} {number:>9} tokens of {chunks} chunks from {first_chunk}: {} bytes",
                encoded.len()
            );
        }
    };
    match &entry.outcome {
        Some(outcome) => format!("{at:>14} {number:>9} {kind}{details} -> {outcome}"),
        None => format!("{at:>14} {number:>9} {kind}{details}"),
    }
}

fn describe(event: &Event<'_>) -> String {
    match event {
        Event::Tick => String::new(),
        Event::Asked { reply, ask } => {
            let connection = reply.connection.0;
            let (index, generation) = (connection.index, connection.generation);
            format!(" c{index}.{generation}{}", describe_ask(ask))
        }
        Event::ConnectionEnded { connection } => {
            format!(" c{}.{}", connection.0.index, connection.0.generation)
        }
        Event::SendEnded { ticket, outcome } => format!("{} {outcome:?}", named(*ticket)),
        Event::ReceiveEnded { ticket, complete, outcome } => {
            format!("{} {complete} chunks {outcome:?}", named(*ticket))
        }
        Event::AttachEnded { attachment, outcome } => {
            format!("{} {outcome:?}", named(Ticket(attachment.0)))
        }
        Event::CopyEnded { ticket, whole } => format!("{} whole={whole}", named(*ticket)),
        Event::ArenaGrown { bytes } => format!(" to {bytes} bytes"),
        Event::OperatorAsked { ask, .. } => match ask {
            OperatorAsk::Clear { force } => format!(" force={force}"),
            OperatorAsk::QuotaSet { salt, bytes } => format!(" salt={salt} {bytes} bytes"),
            OperatorAsk::QuotaRemove { salt } => format!(" salt={salt}"),
            OperatorAsk::AdapterRemove { adapter } => format!(" adapter={}", adapter.0),
            OperatorAsk::Delete { key, from_l1, adapter, force } => {
                let adapter = adapter.map(|adapter| adapter.0);
                format!(" {:?} l1={from_l1} adapter={adapter:?} force={force}", key.hash)
            }
        },
        Event::AdapterAdded { adapter, setup } => {
            let (name, bytes) = (plain(setup.name), setup.capacity_bytes);
            format!(" adapter={} {name} {bytes} bytes", adapter.0)
        }
        Event::AdapterScanned { adapter, found } => {
            format!(" adapter={} {} objects", adapter.0, found.len())
        }
        Event::AdapterScanEnded { adapter } => format!(" adapter={}", adapter.0),
        Event::ProbeEnded { ticket, found: None } => format!("{} nobody knows", named(*ticket)),
        Event::ProbeEnded { ticket, found: Some(found) } => {
            let there = found.iter().flatten().count();
            format!("{} {there} of {} there", named(*ticket), found.len())
        }
        Event::StoreEnded { ticket, outcome } => format!("{} {outcome:?}", named(*ticket)),
        Event::LoadEnded { ticket, outcome } => format!("{} {outcome:?}", named(*ticket)),
        Event::DeleteEnded { ticket, outcome } => format!("{} {outcome:?}", named(*ticket)),
        Event::DigestEnded { ticket, digest } => format!("{} {digest:08x}", named(*ticket)),
        Event::ScrubEnded { ticket, digest: None } => format!("{} unreadable", named(*ticket)),
        Event::ScrubEnded { ticket, digest: Some(digest) } => {
            format!("{} {digest:08x}", named(*ticket))
        }
    }
}

fn named(ticket: Ticket) -> String {
    format!(" t{}.{}", ticket.0.index, ticket.0.generation)
}

fn describe_ask(ask: &Ask<'_>) -> String {
    match ask {
        Ask::Register(registration) => {
            let (instance, model) = (registration.instance.0, plain(registration.model));
            format!(" i{instance:x} {model} world={}", registration.world_size)
        }
        Ask::RegisterPaged(registration) => {
            let (instance, model) = (registration.instance.0, plain(registration.model));
            let (world, pages) = (registration.world_size, registration.pages);
            format!(" i{instance:x} {model} world={world} {:?}", pages.format)
        }
        Ask::Store { instance, keys, blocks } => {
            format!(" i{:x}{} {} blocks", instance.0, describe_keys(keys), blocks.len())
        }
        Ask::Retrieve { instance, keys, blocks, skip_tokens } => {
            let (instance, keys, blocks) = (instance.0, describe_keys(keys), blocks.len());
            format!(" i{instance:x}{keys} {blocks} blocks, skips {skip_tokens} tokens")
        }
        Ask::BlocksAllocated { instance, model, blocks } => {
            format!(" i{:x} {} {} blocks", instance.0, plain(model), blocks.len())
        }
        Ask::RegisterRefused { instance, model, reason } => {
            format!(" i{:x} {} {}", instance.0, plain(model), reason.label())
        }
        Ask::Unregister { instance } => format!(" i{:x}", instance.0),
        Ask::Ping { instance } => instance.map_or(String::new(), |id| format!(" i{:x}", id.0)),
        Ask::Lookup { keys } | Ask::FreeLookupLocks { keys } => describe_keys(keys),
        Ask::QueryPrefetch { request } => format!(" request={request}"),
        Ask::WaitPrefetch { request, wait } => format!(" request={request} wait={wait:?}"),
        Ask::EndSession { request, hashes } => {
            format!(" request={request} chunks=0..{}", hashes.len())
        }
        Ask::PrepareStore { instance, keys }
        | Ask::PrepareRetrieve { instance, keys }
        | Ask::CommitRetrieve { instance, keys } => {
            format!(" i{:x}{}", instance.0, describe_keys(keys))
        }
        Ask::CommitStore { instance, keys, inline_bytes } => {
            format!(" i{:x}{} inline={inline_bytes}", instance.0, describe_keys(keys))
        }
        Ask::Clear { force } => format!(" force={force}"),
    }
}

fn describe_keys(keys: &Keys<'_>) -> String {
    let Keys { model, salt, request, world_size, worker, readers, .. } = keys;
    let worker = worker.map_or("all".to_owned(), |worker| worker.to_string());
    let (first, end, model) = (keys.first_chunk, keys.end_chunk, plain(model));
    let salt = if salt.is_empty() { String::new() } else { format!(" salt={salt}") };
    let last = keys.hashes.last().map_or(String::new(), |hash| format!(" last={hash:?}"));
    format!(
        " {model}{salt} request={request} rank={worker}/{world_size} readers={readers} \
         chunks={first}..{end}{last}"
    )
}

/// A name that a client has chosen, which may be meant for the terminal that shows it.
fn plain(name: &str) -> EscapeDebug<'_> {
    name.escape_debug()
}

fn request_of<'a>(entry: &Entry<'a>) -> Option<&'a str> {
    let Happened::Event(Event::Asked { ask, .. }) = &entry.happened else { return None };
    match ask {
        Ask::Lookup { keys }
        | Ask::FreeLookupLocks { keys }
        | Ask::PrepareStore { keys, .. }
        | Ask::CommitStore { keys, .. }
        | Ask::PrepareRetrieve { keys, .. }
        | Ask::CommitRetrieve { keys, .. } => Some(keys.request),
        Ask::QueryPrefetch { request }
        | Ask::WaitPrefetch { request, .. }
        | Ask::EndSession { request, .. } => Some(request),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_nothing_to_a_terminal() {
        let name = "a/model-7B\u{1b}[2J\r\n12.000000 forged\u{202e}";
        assert_eq!(plain(name).to_string(), "a/model-7B\\u{1b}[2J\\r\\n12.000000 forged\\u{202e}");
    }
}
