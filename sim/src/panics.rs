//! A panic of the engine is a broken rule like any other: caught, and not printed where it happens.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// What the run came to; a panic is an error with its words.
pub fn caught(run: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                loud(info);
            }
        }));
    });
    let before = IS_QUIET.replace(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(run));
    IS_QUIET.set(before);
    outcome.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", words.unwrap_or("without a word")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_words() {
        assert_eq!(caught(|| Ok(())), Ok(()));
        assert_eq!(caught(|| panic!("seven {}", 7)), Err("panic: seven 7".into()));
        assert_eq!(caught(|| panic!("plain")), Err("panic: plain".into()));
    }
}
