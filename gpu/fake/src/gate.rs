//! What every call passes before it does anything, in this order: counted, injected fault,
//! initialised, forked, inside a callback, broken context, context current on this thread. And the
//! calls about devices and contexts, which change nothing else.

use crate::abi::{self, Uuid, put};
use crate::world::{self, Context, World};
use std::cell::Cell;

thread_local! {
    /// The context that is current on this thread; 0 for none.
    pub static CURRENT: Cell<usize> = const { Cell::new(0) };
    pub static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Need {
    Nothing,
    Init,
    Context,
    /// Destroys something. It works in a broken context, too, and then returns that error:
    /// "may also return error codes from previous, asynchronous launches".
    Cleanup,
}

pub fn enter(name: &'static str, need: Need, body: impl FnOnce() -> Result<(), u32>) -> u32 {
    // Not in the head of `match`, where the lock would live on.
    let checked = check(&mut world::lock(), name, need);
    match checked {
        Err(code) => code,
        Ok(sticky) => match body() {
            Ok(()) => sticky,
            Err(code) => code,
        },
    }
}

fn check(world: &mut World, name: &'static str, need: Need) -> Result<u32, u32> {
    world.injected(name)?;
    // A host function must make no call into the driver; it may be answered "not permitted".
    if IN_CALLBACK.get() {
        world.violation(format!("{name} inside a host function"));
        return Err(abi::NOT_PERMITTED);
    }
    if need == Need::Nothing {
        return Ok(0);
    }
    // Any call before `cuInit` fails with "not initialised"; so does any in a forked child, where
    // the driver's threads and mappings are not.
    if world.process != Some(std::process::id()) {
        if world.process.is_some() {
            world.violation(format!("{name} in a forked child"));
        }
        return Err(abi::NOT_INITIALIZED);
    }
    if need == Need::Init {
        return Ok(0);
    }
    // Most calls act on the context that is current on the calling thread, and need one.
    let Some(context) = world.contexts.get(&CURRENT.get()) else {
        world.violation(format!("{name} on a thread without a context"));
        return Err(abi::INVALID_CONTEXT);
    };
    match (context.sticky, need) {
        (sticky, Need::Cleanup) => Ok(sticky),
        (0, _) => Ok(0),
        (sticky, _) => Err(sticky),
    }
}

/// One exported call a piece: what it needs, its name, its arguments, its body.
macro_rules! entries {
    ($($(#[$doc:meta])* $need:ident $name:ident($($arg:ident: $kind:ty),* $(,)?) $body:block)*) => {
        $($(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $kind),*) -> u32 {
            $crate::gate::enter(stringify!($name), $crate::gate::Need::$need, move || $body)
        })*
    };
}
pub(crate) use entries;

fn device(ordinal: i32) -> Result<(), u32> {
    let known = (0..world::lock().settings.devices).contains(&(ordinal as u64));
    if known { Ok(()) } else { Err(abi::INVALID_DEVICE) }
}

pub fn uuid(ordinal: i32) -> Uuid {
    let mut bytes = *b"\xFA\x4E\xC0\xDA-kvtide-\x90\x00\x00\x00";
    bytes[15] = ordinal as u8;
    Uuid { bytes }
}

entries! {
    Nothing cuInit(flags: u32) {
        if flags != 0 {
            return Err(abi::INVALID_VALUE);
        }
        let mut world = world::lock();
        if world.settings.devices == 0 {
            return Err(abi::NO_DEVICE);
        }
        world.process.get_or_insert(std::process::id());
        Ok(())
    }

    Nothing cuDriverGetVersion(out: *mut i32) {
        put(out, world::lock().settings.version as i32)
    }

    Init cuDeviceGetCount(out: *mut i32) {
        put(out, world::lock().settings.devices as i32)
    }

    Init cuDeviceGet(out: *mut i32, ordinal: i32) {
        device(ordinal)?;
        put(out, ordinal)
    }

    Init cuDeviceGetName(out: *mut u8, bytes: i32, ordinal: i32) {
        device(ordinal)?;
        let room = usize::try_from(bytes).is_ok_and(|bytes| bytes >= 10);
        if room { put(out.cast(), *b"fake card\0") } else { Err(abi::INVALID_VALUE) }
    }

    Init cuDeviceGetUuid_v2(out: *mut Uuid, ordinal: i32) {
        device(ordinal)?;
        put(out, uuid(ordinal))
    }

    Init cuDevicePrimaryCtxRetain(out: *mut usize, ordinal: i32) {
        device(ordinal)?;
        let mut world = world::lock();
        let found = world.contexts.iter_mut().find(|(_, context)| context.device == ordinal);
        if let Some((handle, context)) = found {
            context.references += 1;
            return put(out, *handle);
        }
        let handle = world.handle();
        world.contexts.insert(handle, Context { device: ordinal, references: 1, sticky: 0 });
        put(out, handle)
    }

    /// The last release destroys the context with everything in it; a library that leaves objects
    /// behind has lost track of them.
    Init cuDevicePrimaryCtxRelease_v2(ordinal: i32) {
        let mut world = world::lock();
        let found = world.contexts.iter_mut().find(|(_, context)| context.device == ordinal);
        let Some((&handle, context)) = found else {
            world.violation("a context is released more often than retained".to_string());
            return Err(abi::INVALID_CONTEXT);
        };
        context.references -= 1;
        if context.references == 0 {
            world.contexts.remove(&handle);
            let left = world.objects(|context| context == handle);
            if left > 0 {
                world.violation(format!("{left} objects are alive at the last release"));
            }
            world.report();
        }
        Ok(())
    }

    Init cuCtxSetCurrent(context: usize) {
        if context != 0 && !world::lock().contexts.contains_key(&context) {
            return Err(abi::INVALID_CONTEXT);
        }
        CURRENT.set(context);
        Ok(())
    }
}
