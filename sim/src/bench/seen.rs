//! What comes of an event, for whoever plays the world.

use super::paged::Copying;
use crate::devices::Paged;
use crate::model::ObjectNumber;
use crate::orders::Order;
use kvtide_core::effect::Answer;
use kvtide_core::names::{Attachment, Place, Reply, Ticket};

/// What the world has to act upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// `slots` belong to a store or retrieve answer.
    Answered { reply: Reply, answer: Answer, slots: Vec<Lent> },
    /// `Event::SendEnded` is owed.
    Sending { reply: Reply, ticket: Ticket, slots: Vec<Lent>, with_slots: bool },
    /// `Event::ReceiveEnded` is owed.
    Receiving { reply: Reply, ticket: Ticket, slots: Vec<Lent>, chunks: u32 },
    /// Memory is to be attached; `Event::AttachEnded` is owed.
    Attaching { attachment: Attachment, reply: Reply, paged: Paged },
    /// Memory is let go as soon as no copy uses it.
    Detached { attachment: Attachment },
    /// `Event::CopyEnded` is owed.
    Copying(Box<Copying>),
    /// A lower tier has something to do; it may owe an ending.
    Ordered(Order),
}

/// A place and the object whose bytes belong there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    pub chunk: u32,
    pub place: Place,
    pub object: ObjectNumber,
}
