//! `/cache/objects`: what lies in a lower tier, page by page, and taking objects away by name
//! (spec/http-cli §2.3). The list is the engine's table, so that asking for it costs no device
//! anything and every type of tier has one.
//!
//! The one invariant: whatever a request asks for, the engine is asked in parts of a bounded size.

use super::answer::{Wrong, detail, ok, reason, unprocessable};
use super::keys::{DeleteBody, read_hash};
use super::reach::{Ask, Unreachable, Wanted, told};
use super::routes::Site;
use crate::object_key::ObjectKey;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use kvtide_core::effect::OperatorAnswer;
use kvtide_core::engine::adapters::operator::{AdapterStatus, Listed, Page};
use kvtide_core::front::key::rules::{check_model, check_salt};
use kvtide_core::limits::SALT_CHARS_MAX;
use kvtide_core::names::{AdapterId, KvRank};
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::Arc;

pub async fn list(State(site): State<Arc<Site>>, RawQuery(query): RawQuery) -> Response {
    let query = match Query::read(query.as_deref().unwrap_or_default()) {
        Ok(query) => query,
        Err(wrongs) => return unprocessable(&wrongs),
    };
    if query.tier != "l2" {
        let text = format!("tier '{}' not supported; only 'l2'", query.tier);
        return detail(StatusCode::BAD_REQUEST, &text);
    }
    let adapter = match choose(&site, query.adapter.as_deref()).await {
        Ok(adapter) => adapter,
        Err(refusal) => return refusal,
    };
    let from = match query.page_token.as_deref().map(|token| place(token, adapter.id)) {
        None => 0,
        Some(Some(from)) => from,
        Some(None) => return detail(StatusCode::BAD_REQUEST, "page_token is not one of this list"),
    };
    let (most, model) = (query.page_size, query.model_name);
    let wanted = Wanted { adapter: adapter.id, from, most, model };
    match site.copied(|answer| site.reach.objects(wanted, answer)).await {
        Ok(Some(page)) => {
            let is_shared = site.view.is_shared(adapter.id);
            ok(shown(&adapter, is_shared, &page))
        }
        Ok(None) => detail(StatusCode::NOT_FOUND, "the L2 adapter has just left"),
        Err(unreachable) => busy(unreachable),
    }
}

pub async fn delete(State(site): State<Arc<Site>>, body: Bytes) -> Response {
    let body = match DeleteBody::read(&body) {
        Ok(body) => body,
        Err(wrongs) => return unprocessable(&wrongs),
    };
    if body.keys.len() > KEYS_MAX {
        let given = body.keys.len();
        let text = format!("too many keys in a single request (limit={KEYS_MAX}, got={given})");
        return detail(StatusCode::BAD_REQUEST, &text);
    }
    let mut keys = Vec::with_capacity(body.keys.len());
    for (at, key) in body.keys.iter().enumerate() {
        match object_key(key) {
            Ok(key) => keys.extend(key),
            Err(text) => return detail(StatusCode::BAD_REQUEST, &format!("keys[{at}]: {text}")),
        }
    }
    let adapter = match body.tier {
        "l1" => None,
        _ => match choose(&site, body.adapter.as_deref()).await {
            Ok(adapter) => Some(adapter.id),
            Err(refusal) => return refusal,
        },
    };
    let (from_l1, force) = (body.tier != "l2", body.force);
    let (mut deleted, mut skipped, mut fault) = (0, 0, None);
    for keys in keys.chunks(KEYS_PER_ASK) {
        let ask = Ask::Delete { keys: keys.to_vec(), from_l1, adapter, force };
        match told(site.patience, |answer| site.reach.ask(ask, answer)).await {
            Ok(OperatorAnswer::Deleted { deleted: gone, skipped: held }) => {
                deleted += gone;
                skipped += held;
            }
            Ok(OperatorAnswer::Full(bound)) => fault = Some(format!("too many requests ({bound})")),
            Ok(OperatorAnswer::Done | OperatorAnswer::Removed(_)) => {}
            Err(unreachable) => fault = Some(reason(unreachable).to_owned()),
        }
        if fault.is_some() {
            break;
        }
    }
    let mut answer = json!({ "deleted": deleted, "skipped": skipped, "ok": fault.is_none() });
    if let Some(fault) = fault {
        answer["error"] = json!(fault);
    }
    ok(answer)
}

/// The adapter that a request means: by the name of its type, of several the first; by its place
/// in the roster where no type is called so; without a word the primary one.
async fn choose(site: &Site, selector: Option<&str>) -> Result<AdapterStatus, Response> {
    let adapters = told(site.patience, |answer| site.reach.adapters(answer)).await;
    let mut adapters = adapters.map_err(busy)?;
    if adapters.is_empty() {
        return Err(detail(StatusCode::SERVICE_UNAVAILABLE, "no L2 adapters configured"));
    }
    let Some(selector) = selector else { return Ok(adapters.remove(0)) };
    let named = adapters.iter().position(|adapter| adapter.name == selector);
    let numbered = || selector.parse().ok().filter(|at| *at < adapters.len());
    match named.or_else(numbered) {
        Some(at) => Ok(adapters.remove(at)),
        None => {
            let text = format!("no L2 adapter with type_name='{selector}'");
            Err(detail(StatusCode::NOT_FOUND, &text))
        }
    }
}

/// A key that an object here can have; None for one that can be no object's.
fn object_key(key: &super::keys::Key) -> Result<Option<ObjectKey>, String> {
    let hash = read_hash(&key.hash)?;
    if key.model.contains('@') {
        return Err(format!("model_name must not contain '@' (got '{}')", key.model));
    }
    if key.group < 0 {
        return Err(format!("object_group_id must be >= 0 (got {})", key.group));
    }
    if key.salt.chars().count() > SALT_CHARS_MAX {
        let got = key.salt.chars().count();
        return Err(format!("cache_salt exceeds max length {SALT_CHARS_MAX} (got {got})"));
    }
    if check_salt(&key.salt).is_err() {
        return Err(format!(
            "cache_salt must not contain '@', '/', '\\' or NUL (got {:?})",
            key.salt
        ));
    }
    let (rank, group) = (u32::try_from(key.rank), u16::try_from(key.group));
    let (Some(hash), Ok(rank), Ok(group)) = (hash, rank, group) else { return Ok(None) };
    if check_model(&key.model).is_err() {
        return Ok(None);
    }
    let (model, salt) = (key.model.clone(), key.salt.clone());
    Ok(Some(ObjectKey { model, salt, rank: KvRank(rank), group, hash }))
}

/// What a query asks for.
#[derive(Clone, Debug, PartialEq)]
struct Query {
    tier: String,
    adapter: Option<String>,
    model_name: Option<String>,
    page_size: usize,
    page_token: Option<String>,
}

impl Query {
    fn read(text: &str) -> Result<Query, Vec<Wrong>> {
        let mut query = Query {
            tier: "l2".to_owned(),
            adapter: None,
            model_name: None,
            page_size: PAGE_SIZE,
            page_token: None,
        };
        let mut wrongs = Vec::new();
        for (key, value) in pairs(text) {
            match &*key {
                "tier" if TIERS.contains(&&*value) => query.tier = value,
                "tier" => wrongs.push(Wrong {
                    kind: "enum",
                    location: json!(["query", "tier"]),
                    message: "Input should be 'l1', 'l2' or 'all'".to_owned(),
                    input: json!(value),
                    context: Some(json!({ "expected": "'l1', 'l2' or 'all'" })),
                }),
                "adapter" => query.adapter = Some(value),
                "model_name" => query.model_name = Some(value),
                "page_size" => match page_size(&value) {
                    Ok(size) => query.page_size = size,
                    Err(wrong) => wrongs.push(*wrong),
                },
                "page_token" => query.page_token = Some(value),
                _ => {}
            }
        }
        if wrongs.is_empty() { Ok(query) } else { Err(wrongs) }
    }
}

fn page_size(value: &str) -> Result<usize, Box<Wrong>> {
    let wrong = |kind, message: &str, context| {
        Box::new(Wrong {
            kind,
            location: json!(["query", "page_size"]),
            message: message.to_owned(),
            input: json!(value),
            context,
        })
    };
    let Ok(size) = value.trim().parse::<i64>() else {
        let text = "Input should be a valid integer, unable to parse string as an integer";
        return Err(wrong("int_parsing", text, None));
    };
    if size < 1 {
        let text = "Input should be greater than or equal to 1";
        return Err(wrong("greater_than_equal", text, Some(json!({ "ge": 1 }))));
    }
    if size > PAGE_SIZE_MAX {
        let text = "Input should be less than or equal to 5000";
        return Err(wrong("less_than_equal", text, Some(json!({ "le": PAGE_SIZE_MAX }))));
    }
    Ok(size as usize)
}

/// Keys and values of a query, as forms encode them.
fn pairs(text: &str) -> impl Iterator<Item = (String, String)> {
    text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (plain(key), plain(value))
    })
}

fn plain(encoded: &str) -> String {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| *first == b'%');
        let code = code.filter(|code| code.iter().all(u8::is_ascii_hexdigit));
        let code = code.and_then(|code| u8::from_str_radix(str::from_utf8(code).ok()?, 16).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(if *first == b'+' { b' ' } else { *first });
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn shown(adapter: &AdapterStatus, is_shared: bool, page: &Page) -> Value {
    let entries: Vec<Value> = page.objects.iter().map(entry).collect();
    json!({
        "adapter": adapter.name,
        "shared": is_shared,
        "entries": entries,
        "next_page_token": page.next.map(|from| format!("{}.{from}", adapter.id.0)),
    })
}

fn entry(object: &Listed) -> Value {
    let mut hash = String::with_capacity(2 * object.hash.0.len());
    for byte in object.hash.0 {
        // Writing to a string cannot fail.
        write!(hash, "{byte:02x}").ok();
    }
    json!({
        "key": {
            "chunk_hash_hex": hash,
            "model_name": &*object.model,
            "kv_rank": object.rank.0,
            "object_group_id": object.group,
            "cache_salt": &*object.salt,
        },
        "size_bytes": object.bytes,
    })
}

/// The place that a token of this adapter names.
fn place(token: &str, adapter: AdapterId) -> Option<u32> {
    let (of, from) = token.split_once('.')?;
    (of.parse() == Ok(adapter.0)).then(|| from.parse().ok()).flatten()
}

fn busy(unreachable: Unreachable) -> Response {
    detail(StatusCode::SERVICE_UNAVAILABLE, reason(unreachable))
}

const TIERS: [&str; 3] = ["l1", "l2", "all"];
/// The peer's (spec/http-cli §2.3).
const PAGE_SIZE: usize = 500;
const PAGE_SIZE_MAX: i64 = 5000;
const KEYS_MAX: usize = 10_000;
/// Keys that the reactor is asked to delete in one turn.
const KEYS_PER_ASK: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_as_forms_are_encoded() {
        let query = Query::read("model_name=meta%2Fllama+3&page_size=7&adapter=1&x=%zz&y=%+f");
        let query = query.expect("nothing is wrong with it");
        assert_eq!(query.model_name.as_deref(), Some("meta/llama 3"));
        assert_eq!((query.page_size, query.adapter.as_deref()), (7, Some("1")));
        let defaults = Query::read("").expect("nothing is asked for");
        assert_eq!((&*defaults.tier, defaults.page_size), ("l2", 500));
        for (text, kind) in [
            ("page_size=0", "greater_than_equal"),
            ("page_size=5001", "less_than_equal"),
            ("page_size=x", "int_parsing"),
            ("tier=l9", "enum"),
        ] {
            let wrongs = Query::read(text).expect_err(text);
            assert_eq!(wrongs.iter().map(|wrong| wrong.kind).collect::<Vec<_>>(), [kind]);
        }
    }

    #[test]
    fn a_token_is_of_one_adapter() {
        assert_eq!(place("3.17", AdapterId(3)), Some(17));
        for token in ["4.17", "17", "3.", "3.x", "", "3.-1", "3.99999999999"] {
            assert_eq!(place(token, AdapterId(3)), None, "{token}");
        }
    }
}
