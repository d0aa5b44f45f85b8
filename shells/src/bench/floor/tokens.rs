//! The tokens of a key, read by hand: nothing is checked that the generator cannot get wrong.

/// Appends the token ids of a key frame. None: this is no key.
pub fn read_tokens(key: &[u8], tokens: &mut Vec<u32>) -> Option<()> {
    let name = b"\xa9token_ids";
    // The array stands behind three short fields.
    let head = key.get(..key.len().min(HEAD_BYTES))?;
    let at = head.windows(name.len()).position(|part| part == name)? + name.len();
    let (count, mut rest) = match key.get(at..)? {
        [marker @ 0x90..=0x9f, rest @ ..] => (usize::from(marker & 0x0f), rest),
        [0xdc, a, b, rest @ ..] => (usize::from(u16::from_be_bytes([*a, *b])), rest),
        [0xdd, a, b, c, d, rest @ ..] => (u32::from_be_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => return None,
    };
    tokens.reserve(count.min(rest.len()));
    for _ in 0..count {
        let (token, bytes) = match rest.first_chunk::<5>() {
            // Whether a token takes three bytes or five cannot be predicted, so it is computed.
            Some(&[marker @ 0xcd..=0xce, a, b, c, d]) => {
                let narrow = u32::from(marker == 0xcd);
                let word = u32::from_be_bytes([a, b, c, d]);
                (word >> (16 * narrow), 5 - 2 * narrow as usize)
            }
            _ => other(rest)?,
        };
        tokens.push(token);
        rest = &rest[bytes..];
    }
    Some(())
}

/// Tokens that are rare, or stand at the very end.
fn other(rest: &[u8]) -> Option<(u32, usize)> {
    match *rest {
        [value @ 0x00..=0x7f, ..] => Some((u32::from(value), 1)),
        [0xcc, value, ..] => Some((u32::from(value), 2)),
        [0xcd, a, b, ..] => Some((u32::from(u16::from_be_bytes([a, b])), 3)),
        [0xce, a, b, c, d, ..] => Some((u32::from_be_bytes([a, b, c, d]), 5)),
        _ => None,
    }
}

/// Model name, world size and rank of the generator's keys fit into it.
const HEAD_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::wire::client::Key;

    #[test]
    fn tokens_of_every_width_come_out() {
        for count in [0, 1, 15, 16, 5000, 70_000] {
            let widths = [7, 200, 300, 70_000, u32::MAX];
            let sent: Vec<u32> = (0..count).map(|at| widths[at % widths.len()]).collect();
            let mut key = Vec::new();
            Key {
                model: "m",
                world_size: 1,
                worker: None,
                tokens: &sent,
                start: 0,
                end: count as u64,
                request: "r",
                salt: "",
                readers: 1,
            }
            .encode(&mut key);
            let mut tokens = Vec::new();
            assert_eq!(read_tokens(&key, &mut tokens), Some(()));
            assert_eq!(tokens, sent);
            let end = key.windows(6).position(|part| part == b"\xa5start").expect("it follows");
            let cut = read_tokens(&key[..end - 1], &mut Vec::new());
            assert!(cut.is_none(), "the last byte of {count} tokens is missing");
        }
        assert_eq!(read_tokens(b"\x80", &mut Vec::new()), None);
    }
}
