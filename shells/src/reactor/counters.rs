//! What the reactor counts itself: sockets and bytes, of which the engine knows nothing.

use kvtide_core::wire::zmtp::ZmtpFault;

/// Why we closed a connection that its peer had not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// The peer does not speak ZMTP as we do.
    Protocol(ZmtpFault),
    /// A frame that is no inline body and over `LARGE_FRAME_BYTES_MAX`, or takes its message over
    /// `MESSAGE_BYTES_MAX`.
    FrameTooLarge,
    /// A uid or an operation so long that no client sends it; an answer would have to repeat it.
    EnvelopeTooLarge,
    /// The handshake did not end in time.
    HandshakeTimeout,
    /// A frame stood still, or nearly so, while others waited for its share of a budget.
    LargeFrameStalled,
    /// A message began and did not go on.
    MessageStalled,
    /// All buffers were in use, and this connection stood still longer than others.
    BuffersFull,
}

impl Closing {
    pub fn label(self) -> &'static str {
        match self {
            Closing::Protocol(_) => "protocol",
            Closing::FrameTooLarge => "frame_too_large",
            Closing::EnvelopeTooLarge => "envelope_too_large",
            Closing::HandshakeTimeout => "handshake_timeout",
            Closing::LargeFrameStalled => "large_frame_stalled",
            Closing::MessageStalled => "message_stalled",
            Closing::BuffersFull => "buffers_full",
        }
    }

    fn index(self) -> usize {
        match self {
            Closing::Protocol(_) => 0,
            Closing::FrameTooLarge => 1,
            Closing::EnvelopeTooLarge => 2,
            Closing::HandshakeTimeout => 3,
            Closing::LargeFrameStalled => 4,
            Closing::MessageStalled => 5,
            Closing::BuffersFull => 6,
        }
    }
}

/// Totals since start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub accepted: u64,
    /// Closed at once: the table of connections is full.
    pub turned_away_full: u64,
    /// Closed at once: no descriptor was left.
    pub turned_away_descriptors: u64,
    /// Connections whose end was told to the engine.
    pub ended: u64,
    pub messages: u64,
    pub answers: u64,
    /// Answers for connections that had ended, or that take no more.
    pub answers_dropped: u64,
    pub input_bytes: u64,
    pub output_bytes: u64,
    pub fact_batches_dropped: u64,
    closings: [u64; 7],
}

impl Counters {
    pub fn closing(&mut self, why: Closing) {
        self.closings[why.index()] += 1;
    }

    /// How often connections were closed for this reason; protocol faults are one reason.
    pub fn closings(&self, why: Closing) -> u64 {
        self.closings[why.index()]
    }
}
