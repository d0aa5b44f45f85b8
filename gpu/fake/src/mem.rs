//! Device memory and registered host memory. An allocation has two views: a shared file that the
//! streams copy through, and a reservation without any access whose address is the device pointer,
//! so that a program that reads one as its own is stopped on the spot.

use crate::abi::{self, put};
use crate::gate::{CURRENT, entries};
use crate::ipc::Shared;
use crate::world::{self, World};
use rustix::mm::{self, MapFlags, ProtFlags};
use std::sync::Arc;

pub struct Allocation {
    pub context: usize,
    pub bytes: u64,
    pub backing: Arc<Backing>,
    /// The handle it was opened by and how often; nothing for what was allocated here.
    pub imported: Option<(abi::IpcHandle, usize)>,
}

pub struct Registration {
    pub context: usize,
    pub bytes: u64,
    pub backing: Arc<Backing>,
}

/// What operations in flight hold on to. Somebody else holding it means: in flight.
pub struct Backing(pub Option<(Shared, Reservation)>);

impl Backing {
    pub fn shared(&self) -> Result<&Shared, u32> {
        self.0.as_ref().map(|(shared, _)| shared).ok_or(abi::INVALID_VALUE)
    }
}

/// Addresses that nothing can be read from or written to.
pub struct Reservation {
    pub address: u64,
    bytes: usize,
}

impl Reservation {
    pub fn new(bytes: usize) -> Result<Reservation, u32> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping wherever the kernel likes disturbs none that exists.
        let mapped =
            unsafe { mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) };
        let address = mapped.map_err(|_| abi::OUT_OF_MEMORY)? as u64;
        Ok(Reservation { address, bytes })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: this reservation made the mapping, and no address in it was ever accessible.
        let _ = unsafe { mm::munmap(self.address as *mut _, self.bytes) };
    }
}

/// Where an operation reads or writes: an address of this process, held until it is done.
#[derive(Clone)]
pub struct Place {
    pub address: usize,
    _hold: Option<Arc<Backing>>,
}

impl Place {
    pub fn at(&self, offset: usize) -> Place {
        Place { address: self.address + offset, ..self.clone() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Device,
    Host,
    /// Unified addresses: the driver finds out by itself.
    Either,
}

impl World {
    fn allocation_at(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (base, found) = self.allocations.range(..=address).next_back()?;
        (address < base + found.bytes).then_some((*base, found))
    }

    fn registration_at(&self, address: u64) -> Option<(u64, &Registration)> {
        let (base, found) = self.registrations.range(..=address).next_back()?;
        (address < base + found.bytes).then_some((*base, found))
    }

    /// A range lies inside one live allocation or one registration, on the side that the call
    /// says: anything else is an invalid value.
    pub fn place(&mut self, address: u64, bytes: u64, side: Side) -> Result<Place, u32> {
        let end = address.checked_add(bytes).ok_or(abi::INVALID_VALUE)?;
        if let Some((base, found)) = self.allocation_at(address) {
            if side == Side::Host || end > base + found.bytes {
                return Err(abi::INVALID_VALUE);
            }
            let shared = found.backing.shared()?;
            let freed = found.imported.is_some() && shared.gone();
            let address_here = shared.address() + (address - base) as usize;
            let hold = Some(Arc::clone(&found.backing));
            if freed {
                // Memory that its owner freed while it is open elsewhere is undefined.
                self.violation("memory is used after its exporter freed it".to_string());
            }
            return Ok(Place { address: address_here, _hold: hold });
        }
        if side == Side::Device || bytes == 0 || address == 0 {
            return Err(abi::INVALID_VALUE);
        }
        if let Some((base, found)) = self.registration_at(address) {
            // One copy stays within one registration; neighbours are not one range.
            if end > base + found.bytes {
                return Err(abi::INVALID_VALUE);
            }
            let hold = Some(Arc::clone(&found.backing));
            return Ok(Place { address: address as usize, _hold: hold });
        }
        // Legal, but then the call may wait for the copy: pageable memory goes through a stage.
        self.violation(format!("host memory at {address:#x} is not registered"));
        Ok(Place { address: address as usize, _hold: None })
    }
}

pub fn in_flight(backing: &Arc<Backing>) -> bool {
    Arc::strong_count(backing) > 1
}

entries! {
    Context cuMemAlloc_v2(out: *mut u64, bytes: usize) {
        if bytes == 0 {
            return Err(abi::INVALID_VALUE);
        }
        let mut world = world::lock();
        let used: u64 = world.allocations.values().map(|each| each.bytes).sum();
        if used + bytes as u64 > world.settings.quota_bytes {
            return Err(abi::OUT_OF_MEMORY);
        }
        let id = world.handle() as u64;
        let shared = Shared::create(world.directory(), id, bytes)?;
        // Fresh memory holds anything; zeros would hide what was never written.
        shared.fill(0xDB);
        let reserved = Reservation::new(bytes)?;
        let base = reserved.address;
        let backing = Arc::new(Backing(Some((shared, reserved))));
        let context = CURRENT.get();
        let found = Allocation { context, bytes: bytes as u64, backing, imported: None };
        world.allocations.insert(base, found);
        put(out, base)
    }

    /// Takes the base of an allocation that was made here, once.
    Cleanup cuMemFree_v2(address: u64) {
        let mut world = world::lock();
        let Some(found) = world.allocations.get(&address) else {
            world.violation("memory is freed that is no allocation, or not its base".to_string());
            return Err(abi::INVALID_VALUE);
        };
        if found.imported.is_some() {
            world.violation("opened memory is freed instead of closed".to_string());
            return Err(abi::INVALID_VALUE);
        }
        let found = world.allocations.remove(&address).expect("found a line above");
        if in_flight(&found.backing) {
            world.violation_in_flight("memory is freed while an operation uses it");
        }
        let shared = found.backing.shared()?;
        // Freeing what others still have open is undefined for them.
        if shared.imports() > 0 {
            world.violation("exported memory is freed while it is open elsewhere".to_string());
        }
        shared.retire();
        Ok(())
    }

    Context cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) {
        let world = world::lock();
        let (start, found) = world.allocation_at(address).ok_or(abi::INVALID_VALUE)?;
        put(bytes, found.bytes as usize)?;
        put(base, start)
    }

    Context cuMemHostRegister_v2(address: usize, bytes: usize, flags: u32) {
        let (from, bytes) = (address as u64, bytes as u64);
        let end = from.checked_add(bytes).ok_or(abi::INVALID_VALUE)?;
        if from == 0 || bytes == 0 || flags > 0xF {
            return Err(abi::INVALID_VALUE);
        }
        let mut world = world::lock();
        let before = world.registrations.range(..end).next_back();
        if before.is_some_and(|(base, each)| base + each.bytes > from) {
            return Err(abi::ALREADY_REGISTERED);
        }
        if flags & 1 == 0 {
            world.violation("host memory is registered for one context only".to_string());
        }
        let (context, backing) = (CURRENT.get(), Arc::new(Backing(None)));
        world.registrations.insert(from, Registration { context, bytes, backing });
        Ok(())
    }

    Cleanup cuMemHostUnregister(address: usize) {
        let mut world = world::lock();
        let found = world.registrations.remove(&(address as u64)).ok_or(abi::NOT_REGISTERED)?;
        if in_flight(&found.backing) {
            world.violation_in_flight("host memory is unregistered while an operation uses it");
        }
        Ok(())
    }
}
