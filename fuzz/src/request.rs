//! The frames of a request behind its uid: the operation, then its payloads.
//!
//! ```text
//! input   | u16be length | bytes | u16be length | bytes | …     the last one may be cut
//! ```
//!
//! What decodes is written and decoded again, to the same bytes. Whatever does not has an answer.

use super::frames;
use kvtide_core::wire::answer::{fault_answer, unserved_answer};
use kvtide_core::wire::client::encode_payloads;
use kvtide_core::wire::operation::{decode_operation, decode_stream_control};
use kvtide_core::wire::request::Request;

pub fn run(input: &[u8]) {
    let frames = frames(input);
    let Some((operation, payloads)) = frames.split_first() else { return };
    let control = decode_stream_control(operation, payloads);
    let Some(operation) = decode_operation(operation) else { return };
    assert_eq!(control, None, "a request steers no stream");
    match Request::decode(operation, payloads) {
        Ok(request) => {
            assert_eq!(request.operation(), operation);
            let written = encode_payloads(&request);
            let again: Vec<&[u8]> = written.iter().map(Vec::as_slice).collect();
            let decoded = Request::decode(operation, &again).expect("what we write, we read");
            assert_eq!(encode_payloads(&decoded), written);
            let _answer = unserved_answer(&request, 1);
        }
        Err(fault) => {
            let _answer = fault_answer(operation, fault, 1);
        }
    }
}
