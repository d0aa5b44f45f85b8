//! What the admin side holds in memory for those who ask. An answer is in the way until its reader
//! has taken it, and readers stop, so answers share two budgets (design P3): one for the pages of
//! scrapers, which are to come through when operators' answers are not taken, and one for the rest.
//!
//! The one invariant: bytes of an answer are counted from the moment it is made until the last of
//! them is written or given up. Small ones are left alone, for each connection has room for them.

use super::bodies::{BODY_BYTES_MAX, LARGE_BYTES_MAX, shaped};
use super::listen::{HEAD_BYTES_MAX, SOCKETS_MAX};
use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use axum::response::Response;
use http_body_util::BodyExt;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The two budgets, in KiB. Clones are the same.
#[derive(Clone, Debug)]
pub struct Answers {
    pages: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

/// Bytes that are on their way, and what was taken for them.
struct Held {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Answers {
    pub fn new() -> Answers {
        let budget = |bytes| Arc::new(Semaphore::new(kib(bytes)));
        Answers { pages: budget(PAGES_BYTES), others: budget(OTHERS_BYTES) }
    }

    /// The answer, counted for as long as it lies here; a refusal where there is no room for it.
    pub async fn hold(&self, path: &str, is_page: bool, answer: Response) -> Response {
        let (head, body) = answer.into_parts();
        // Every answer is text in one piece, which says how long it is.
        let bytes = body.size_hint().exact().unwrap_or(u64::MAX);
        if bytes <= SMALL_BYTES as u64 {
            return Response::from_parts(head, body);
        }
        let (budget, all) = match is_page {
            true => (&self.pages, kib(PAGES_BYTES)),
            false => (&self.others, kib(OTHERS_BYTES)),
        };
        // Text grows by doubling. One answer always fits, however large it is.
        let share = kib(usize::try_from(bytes).unwrap_or(usize::MAX).saturating_mul(2)).min(all);
        let permit = budget.clone().try_acquire_many_owned(share as u32);
        let (Ok(permit), Ok(body)) = (permit, body.collect().await) else {
            let text = "too many answers wait for their readers; try again";
            return shaped(path, StatusCode::SERVICE_UNAVAILABLE, text);
        };
        let held = Held { bytes: body.to_bytes(), _permit: permit };
        Response::from_parts(head, Body::from(Bytes::from_owner(held)))
    }
}

/// Most bytes that the admin side can take, for `--print-memory`.
pub fn memory_bytes_max() -> u64 {
    (PAGES_BYTES + OTHERS_BYTES + MAKING_BYTES + LARGE_BYTES + SOCKETS_MAX * SOCKET_BYTES) as u64
}

fn kib(bytes: usize) -> usize {
    bytes.div_ceil(1024)
}

const PAGES_BYTES: usize = 32 << 20;
const OTHERS_BYTES: usize = 64 << 20;
/// Answers up to this size are no burden: what probes get is smaller by far.
const SMALL_BYTES: usize = 4 << 10;
/// The one answer that is being made: the longest is the list of all quotas, with what it is made
/// from.
const MAKING_BYTES: usize = 64 << 20;
/// The one large body: in its parts, as a whole, read as JSON and as keys.
const LARGE_BYTES: usize = 16 * LARGE_BYTES_MAX;
/// Of each socket: buffers for heads in both directions, a body in its parts and as a whole, and a
/// small answer.
const SOCKET_BYTES: usize = 2 * HEAD_BYTES_MAX + 2 * BODY_BYTES_MAX + 2 * SMALL_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(bytes: usize) -> Response {
        Response::new(Body::from(vec![b'x'; bytes]))
    }

    #[tokio::test]
    async fn answers_that_are_not_taken_leave_no_room_for_more_but_for_small_ones_and_pages() {
        let answers = Answers::new();
        let large = || answers.hold("/quota", false, answer(OTHERS_BYTES));
        let first = large().await;
        assert_eq!(first.status(), StatusCode::OK, "one always fits");
        assert_eq!(large().await.status(), StatusCode::SERVICE_UNAVAILABLE);
        let small = answers.hold("/livez", false, answer(SMALL_BYTES)).await;
        assert_eq!(small.status(), StatusCode::OK);
        let page = answers.hold("/metrics", true, answer(SMALL_BYTES + 1)).await;
        assert_eq!(page.status(), StatusCode::OK);
        let bytes = first.into_body().collect().await.expect("it is whole").to_bytes();
        assert_eq!(bytes.len(), OTHERS_BYTES);
        assert_eq!(large().await.status(), StatusCode::SERVICE_UNAVAILABLE, "not written yet");
        drop(bytes);
        assert_eq!(large().await.status(), StatusCode::OK);
    }
}
