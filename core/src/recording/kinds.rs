//! What recordings call events. The one invariant: a number is never given to another kind.

/// By number. 23 and 24 are no events: the end of the server, and tokens.
pub const KINDS: [&str; 42] = [
    "",
    "tick",
    "connection ended",
    "send ended",
    "receive ended",
    "arena grown",
    "operator: clear",
    "operator: quota set",
    "operator: quota remove",
    "register",
    "register refused",
    "unregister",
    "ping",
    "lookup",
    "query prefetch",
    "wait prefetch",
    "free lookup locks",
    "end session",
    "prepare store",
    "commit store",
    "prepare retrieve",
    "commit retrieve",
    "clear",
    "finish",
    "tokens",
    "adapter added",
    "adapter scanned",
    "adapter scan ended",
    "probe ended",
    "store ended",
    "load ended",
    "delete ended",
    "digest ended",
    "scrub ended",
    "operator: adapter remove",
    "operator: delete",
    "register memory",
    "store",
    "retrieve",
    "attach ended",
    "copy ended",
    "blocks allocated",
];
/// `Engine::finish`.
pub(super) const FINISH: u8 = 23;
pub(super) const TOKENS: u8 = 24;
/// `Event::AdapterScanned`.
pub(super) const SCANNED: u8 = 26;
