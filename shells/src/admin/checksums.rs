//! `POST /cache/checksums`: MD5 over blocks of an engine whose memory the server knows
//! (spec/http-cli §2.3). The peer's bench client compares by it what a retrieve has brought with
//! what was stored.

use super::answer::{Wrong, detail, ok, reason, unprocessable};
use super::bodies::BODY_BYTES_MAX;
use super::cache::read_truth;
use super::formats;
use super::reach::told;
use super::routes::Site;
use crate::paged::{SUM_BLOCKS_MAX, SumFault, Summed, Wanted};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use kvtide_core::names::InstanceId;
use kvtide_core::pages::BlockFault;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

pub async fn checksums(State(site): State<Arc<Site>>, body: Bytes) -> Response {
    let SumBody { blocks, chunk_size, instance, layerwise } = match SumBody::read(&body) {
        Ok(wanted) => wanted,
        Err(wrongs) => return unprocessable(&wrongs),
    };
    if site.view.is_engine_driven() {
        let text = "checksum not supported for this engine type";
        return detail(StatusCode::NOT_IMPLEMENTED, text);
    }
    let wanted = Wanted {
        blocks: blocks.iter().map(|&id| u32::try_from(id).unwrap_or(u32::MAX)).collect(),
        chunk_size,
        layerwise,
    };
    let ask = |answer| site.reach.sum(InstanceId(instance), wanted, answer);
    match told(SUM_PATIENCE, ask).await {
        Ok(Ok(summed)) => ok(shown(&summed)),
        Ok(Err(fault)) => refused(fault, instance),
        Err(unreachable) => detail(StatusCode::SERVICE_UNAVAILABLE, reason(unreachable)),
    }
}

fn shown(summed: &Summed) -> Value {
    let Summed { sums, chunks, layers, wanted } = summed;
    let checksums = match *layers {
        None => json!(sums.iter().map(hex).collect::<Vec<_>>()),
        Some(layers) => {
            let of = |layer: usize| sums.iter().skip(layer).step_by(layers).map(hex);
            let each = (0..layers)
                .map(|layer| (format!("layer_{layer}"), json!(of(layer).collect::<Vec<_>>())));
            Value::Object(each.collect())
        }
    };
    json!({
        "status": "success",
        "chunk_size": wanted.chunk_size,
        "num_chunks": chunks,
        "chunk_checksums": checksums,
        "layerwise": wanted.layerwise,
        "block_id_ranges": ranges(&wanted.blocks),
    })
}

fn hex(sum: &[u8; 16]) -> String {
    sum.iter().fold(String::with_capacity(32), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Three or more ids that follow one another are told as the first and the last.
fn ranges(blocks: &[u32]) -> Vec<Value> {
    let runs = blocks.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    runs.flat_map(|run| match run {
        [first, _, .., last] => vec![json!([first, last])],
        few => few.iter().map(|id| json!(id)).collect(),
    })
    .collect()
}

fn refused(fault: SumFault, instance: i64) -> Response {
    let (code, text) = match fault {
        SumFault::Unknown => {
            (StatusCode::NOT_FOUND, format!("instance_id {instance} not registered"))
        }
        SumFault::Card => {
            let text = "checksum not supported for memory of a card";
            (StatusCode::NOT_IMPLEMENTED, text.to_owned())
        }
        SumFault::NoBlocks => (StatusCode::BAD_REQUEST, "block_ids is required".to_owned()),
        SumFault::ChunkSize => (StatusCode::BAD_REQUEST, "chunk_size must be positive".to_owned()),
        SumFault::Format(format) => {
            let text = "checksum not supported for GPU KV format";
            (StatusCode::NOT_IMPLEMENTED, format!("{text} {}", formats::name(format)))
        }
        SumFault::Outside => {
            (StatusCode::BAD_REQUEST, BlockFault::Outside { position: 0 }.text().to_owned())
        }
        SumFault::Bytes | SumFault::Sums => {
            let text = "block_ids names too much for one request; ask for fewer blocks at a time";
            (StatusCode::BAD_REQUEST, text.to_owned())
        }
        SumFault::Busy => {
            let text = "too many checksums at once; try again";
            (StatusCode::SERVICE_UNAVAILABLE, text.to_owned())
        }
        SumFault::Memory(fault) => (StatusCode::INTERNAL_SERVER_ERROR, fault.to_string()),
    };
    detail(code, &text)
}

/// What a body asks for.
#[derive(Clone, Debug, Default, PartialEq)]
struct SumBody {
    blocks: Vec<i64>,
    chunk_size: i64,
    instance: i64,
    layerwise: bool,
}

impl SumBody {
    /// Every field has a default; keys that nobody knows are ignored.
    fn read(body: &[u8]) -> Result<SumBody, Vec<Wrong>> {
        let value: Value = match body.is_empty() {
            true => Value::Null,
            false => {
                serde_json::from_slice(body).map_err(|error| vec![Wrong::json(&error, body)])?
            }
        };
        let mut map = match value {
            Value::Object(map) => map,
            Value::Null => {
                return Err(vec![wrong("missing", json!(["body"]), "Field required", &value)]);
            }
            other => {
                let message = "Input should be a dictionary or an instance of ChecksumRequest";
                let mut wrong = wrong("dataclass_type", json!(["body"]), message, &other);
                wrong.context = Some(json!({ "class_name": "ChecksumRequest" }));
                return Err(vec![wrong]);
            }
        };
        let mut wrongs = Vec::new();
        let blocks = match map.remove("block_ids") {
            None => Vec::new(),
            Some(Value::Array(ids)) => {
                let place = |at: usize| json!(["body", "block_ids", at]);
                let ids = ids.iter().enumerate();
                ids.map(|(at, id)| whole(|| place(at), id, &mut wrongs)).collect()
            }
            Some(other) => {
                let message = "Input should be a valid list";
                wrongs.push(wrong("list_type", json!(["body", "block_ids"]), message, &other));
                Vec::new()
            }
        };
        let mut number = |name: &str| match map.get(name) {
            None => 0,
            Some(value) => whole(|| json!(["body", name]), value, &mut wrongs),
        };
        let (chunk_size, instance) = (number("chunk_size"), number("instance_id"));
        let layerwise = truth(&map, "layerwise", &mut wrongs);
        match wrongs.is_empty() {
            true => Ok(SumBody { blocks, chunk_size, instance, layerwise }),
            false => Err(wrongs),
        }
    }
}

/// The peer's framework takes for a whole number what is one: also text, and also a truth value.
fn whole(place: impl Fn() -> Value, value: &Value, wrongs: &mut Vec<Wrong>) -> i64 {
    let (kind, message) = match value {
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => return number,
            (None, Some(float)) if float.fract() != 0.0 => (
                "int_from_float",
                "Input should be a valid integer, got a number with a fractional part",
            ),
            (None, Some(float)) if float.abs() < (1_i64 << 53) as f64 => return float as i64,
            _ => (
                "int_parsing_size",
                "Unable to parse input string as an integer, exceeded maximum size",
            ),
        },
        Value::Bool(truth) => return i64::from(*truth),
        Value::String(text) => match text.trim().parse() {
            Ok(number) => return number,
            Err(_) => (
                "int_parsing",
                "Input should be a valid integer, unable to parse string as an integer",
            ),
        },
        _ => ("int_type", "Input should be a valid integer"),
    };
    // So many are told that nobody reads more.
    if wrongs.len() < WRONGS_MAX {
        wrongs.push(wrong(kind, place(), message, value));
    }
    0
}

fn truth(map: &Map<String, Value>, name: &str, wrongs: &mut Vec<Wrong>) -> bool {
    let Some(value) = map.get(name) else { return false };
    read_truth(name, value).unwrap_or_else(|wrong| {
        wrongs.push(*wrong);
        false
    })
}

fn wrong(kind: &'static str, location: Value, message: &str, input: &Value) -> Wrong {
    Wrong { kind, location, message: message.to_owned(), input: input.clone(), context: None }
}

const WRONGS_MAX: usize = 64;
/// Longer than the most that may be read takes (`SumFault::Bytes`), also on a busy lane.
const SUM_PATIENCE: Duration = Duration::from_secs(60);
const _: () = assert!(BODY_BYTES_MAX / 2 <= SUM_BLOCKS_MAX, "a body has room for so many ids");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_three_are_told_as_ranges() {
        assert_eq!(json!(ranges(&[1, 2, 3, 4, 5, 7, 8])), json!([[1, 5], 7, 8]));
        assert_eq!(json!(ranges(&[5, 3, 1, 2, 4, 4])), json!([5, 3, 1, 2, 4, 4]));
        assert_eq!(json!(ranges(&[9, 1, 2, 3])), json!([9, [1, 3]]));
        assert_eq!(json!(ranges(&[])), json!([]));
    }

    fn kinds(body: &str) -> Vec<&'static str> {
        let wrongs = SumBody::read(body.as_bytes()).expect_err(body);
        wrongs.iter().map(|wrong| wrong.kind).collect()
    }

    #[test]
    fn what_is_not_said_has_its_default_and_numbers_come_in_many_ways() {
        assert_eq!(SumBody::read(b"{\"more\": 1}"), Ok(SumBody::default()));
        let body = br#"{"block_ids": ["1", 2.0, true], "chunk_size": "4", "instance_id": " +3 ",
            "layerwise": "yes"}"#;
        let read = SumBody { blocks: vec![1, 2, 1], chunk_size: 4, instance: 3, layerwise: true };
        assert_eq!(SumBody::read(body), Ok(read));
    }

    #[test]
    fn everything_that_is_wrong_is_told_at_once_and_not_without_end() {
        assert_eq!((kinds(""), kinds("null")), (vec!["missing"], vec!["missing"]));
        assert_eq!((kinds("{"), kinds("[]")), (vec!["json_invalid"], vec!["dataclass_type"]));
        let body = r#"{"block_ids": [1.5, null, "a"], "chunk_size": 1e30, "instance_id": null,
            "layerwise": 2}"#;
        let wanted = ["int_from_float", "int_type", "int_parsing", "int_parsing_size", "int_type"];
        assert_eq!(kinds(body), [&wanted[..], &["bool_parsing"]].concat());
        assert_eq!(kinds(r#"{"block_ids": {}}"#), ["list_type"]);
        let many = format!(r#"{{"block_ids": [{}]}}"#, vec!["[]"; 10_000].join(","));
        assert_eq!(kinds(&many).len(), WRONGS_MAX);
    }
}
