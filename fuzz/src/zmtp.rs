//! A stream of ZMTP, whole and cut into single bytes: both say the same.

use kvtide_core::wire::zmtp::{Decoder, Role, Token, ZmtpFault};

pub fn run(input: &[u8]) {
    for role in [Role::Router, Role::Dealer] {
        let whole = read(role, [input]);
        let bytes = read(role, input.chunks(1));
        assert_eq!(whole, bytes, "where a stream is cut changes nothing");
        let body: usize =
            whole.0.iter().map(|each| if let Seen::Body(n) = each { *n } else { 0 }).sum();
        assert!(body <= input.len(), "no byte comes twice");
    }
}

/// A token without its borrow; the parts of a body are added up.
#[derive(Debug, PartialEq)]
enum Seen {
    Greeted,
    Ready,
    Ping(Vec<u8>),
    Started(bool, u64),
    Body(usize),
    Ended(bool),
}

fn read<'i>(
    role: Role,
    pieces: impl IntoIterator<Item = &'i [u8]>,
) -> (Vec<Seen>, Option<ZmtpFault>) {
    let mut decoder = Decoder::new(role);
    let mut seen = Vec::new();
    for mut piece in pieces {
        loop {
            match decoder.step(&mut piece) {
                Ok(Some(token)) => note(token, &mut seen),
                Ok(None) => break,
                Err(fault) => return (seen, Some(fault)),
            }
        }
        assert!(piece.is_empty(), "more is asked for only when all is taken");
    }
    (seen, None)
}

fn note(token: Token<'_>, seen: &mut Vec<Seen>) {
    match (token, seen.last_mut()) {
        (Token::FrameBytes(part), Some(Seen::Body(bytes))) => *bytes += part.len(),
        (Token::FrameBytes(part), _) => seen.push(Seen::Body(part.len())),
        (Token::Greeted, _) => seen.push(Seen::Greeted),
        (Token::Ready, _) => seen.push(Seen::Ready),
        (Token::Ping(context), _) => seen.push(Seen::Ping(context.to_vec())),
        (Token::FrameStarted { more, bytes }, _) => seen.push(Seen::Started(more, bytes)),
        (Token::FrameEnded { more }, _) => seen.push(Seen::Ended(more)),
    }
}
