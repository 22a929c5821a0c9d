//! The contexts of this process: their devices, their charges, and their ends.
//!
//! A context takes memory that no call reports (its measured cost, and that of raised limits), and
//! everything allocated in it ends with it. So its charge is recorded here, beside its device, and
//! released with the rest. Contexts end in three ways. A created one ends when it is
//! destroyed, or detached as often as attached. A device's primary context ends with its last release or a
//! reset. A green context only releases the primary one, which owns its memory.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};
use gpuslice_nvabi::types::{CUcontext, CUdevice, CUgreenCtx};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::ACCOUNTS_MAX;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The key of a context in the tables.
#[must_use]
pub fn key(context: CUcontext) -> u64 {
    context.0 as u64
}

/// Number of limits that cost memory: `CU_LIMIT_STACK_SIZE` is the first of them, 0.
pub const LIMITS: usize = 5;

/// The charge of a context, bytes of one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextCharge {
    /// The context itself.
    pub own: u64,
    /// The additional charge of each raised limit.
    pub limits: [u64; LIMITS],
}

impl ContextCharge {
    /// The total.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.limits.iter().sum::<u64>() + self.own
    }

    fn add(&mut self, more: ContextCharge) {
        self.own += more.own;
        for (mine, theirs) in self.limits.iter_mut().zip(more.limits) {
            *mine += theirs;
        }
    }
}

/// Devices by context, for contexts other than the current one, and primary contexts by device.
#[derive(Debug, Default)]
pub struct Contexts {
    known: Mutex<Known>,
    /// The last queried context, and its lane in the top byte (as in [`super::devices::code`]): one word, so
    /// that both are always consistent. It nearly always answers the next query.
    pub(crate) last: AtomicU64,
    /// Held while an object is created whose cost is measured, by lane.
    alone: [Mutex<()>; ACCOUNTS_MAX],
}

#[derive(Debug, Default)]
struct Known {
    contexts: HashMap<u64, Noted>,
    primary: HashMap<CUdevice, Primary>,
    greens: HashMap<CUgreenCtx, Green>,
    /// Context handles of present and former green contexts: their allocations belong to the primary context.
    stand_ins: HashMap<CUdevice, Vec<u64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Noted {
    device: CUdevice,
    charge: ContextCharge,
    /// Attaches without a detach; 1 at its creation.
    uses: u64,
}

impl Noted {
    fn new(device: CUdevice, charge: ContextCharge) -> Noted {
        Noted { device, charge, uses: 1 }
    }
}

/// A device's primary context, and its retains without a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Primary {
    context: CUcontext,
    retained: u64,
}

/// A green context: its device and its context handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Green {
    /// Its device.
    pub device: CUdevice,
    /// Null if the driver does not return it.
    pub context: CUcontext,
}

/// The entries of a context that is being destroyed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Closing {
    gone: Vec<(u64, Noted)>,
    primary: Option<(CUdevice, Primary)>,
}

impl Closing {
    /// The keys of the contexts that end: green ones end with the primary one.
    pub fn keys(&self) -> impl Iterator<Item = u64> {
        self.gone.iter().map(|(key, _)| *key)
    }

    /// Their charges, by device.
    pub fn charges(&self) -> impl Iterator<Item = (CUdevice, u64)> {
        self.gone.iter().map(|(_, noted)| (noted.device, noted.charge.bytes()))
    }
}

impl Contexts {
    fn open(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lock for creating an object whose cost is measured on that lane.
    pub fn alone(&self, lane: Lane) -> MutexGuard<'_, ()> {
        let lock = &self.alone[usize::from(lane.0) % ACCOUNTS_MAX];
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a context of the device is known, so that another one is not the first.
    #[must_use]
    pub fn any(&self, device: CUdevice) -> bool {
        let known = self.open();
        known.contexts.values().any(|noted| noted.device == device)
    }

    /// Contexts of the device, green ones not counted.
    #[must_use]
    pub fn count(&self, device: CUdevice) -> usize {
        let known = self.open();
        let is_green = |key: &u64| known.stand_ins.get(&device).is_some_and(|it| it.contains(key));
        let own = |(key, noted): &(&u64, &Noted)| noted.device == device && !is_green(key);
        known.contexts.iter().filter(own).count()
    }

    /// Whether all streams of the device are of one context: it has no other one, and has had no green one.
    #[must_use]
    pub fn is_only(&self, device: CUdevice) -> bool {
        let known = self.open();
        let has_green = known.stand_ins.contains_key(&device)
            || known.greens.values().any(|green| green.device == device);
        let contexts = known.contexts.values().filter(|noted| noted.device == device);
        !has_green && contexts.count() == 1
    }

    /// Notes a new context. Returns the entries of a context with the same handle, which ended unseen.
    pub fn insert(&self, context: CUcontext, device: CUdevice, charge: ContextCharge) -> Closing {
        let gone = self.remove(context);
        let mut known = self.open();
        for stand_ins in known.stand_ins.values_mut() {
            stand_ins.retain(|&other| other != key(context));
        }
        let noted = Noted::new(device, charge);
        known.contexts.insert(key(context), noted);
        gone
    }

    /// Notes that a device's primary context was retained, also by a green context.
    pub fn retain_primary(&self, context: CUcontext, device: CUdevice) {
        self.last.store(0, Ordering::Relaxed);
        let mut known = self.open();
        let fresh = Noted::new(device, ContextCharge::default());
        known.contexts.entry(key(context)).or_insert(fresh);
        known.add_primary(device, Primary { context, retained: 1 });
    }

    /// Adds to a context's charge; a context that was created unseen is added.
    pub fn charge(&self, context: CUcontext, device: CUdevice, more: ContextCharge) {
        let mut known = self.open();
        let fresh = Noted::new(device, ContextCharge::default());
        let noted = known.contexts.entry(key(context)).or_insert(fresh);
        noted.charge.add(more);
    }

    /// The charge of a limit of a context.
    #[must_use]
    pub fn of_limit(&self, context: CUcontext, limit: usize) -> u64 {
        let known = self.open();
        let noted = known.contexts.get(&key(context));
        noted.and_then(|noted| noted.charge.limits.get(limit).copied()).unwrap_or(0)
    }

    /// Notes that a limit was lowered by `bytes`. Returns the part of its charge to release.
    #[must_use]
    pub fn lower(&self, context: CUcontext, limit: usize, bytes: u64) -> u64 {
        let mut known = self.open();
        let noted = known.contexts.get_mut(&key(context));
        let Some(charged) = noted.and_then(|noted| noted.charge.limits.get_mut(limit)) else {
            return 0;
        };
        let back = bytes.min(*charged);
        *charged -= back;
        back
    }

    /// Notes one more attach.
    pub fn attach(&self, context: CUcontext) {
        if let Some(noted) = self.open().contexts.get_mut(&key(context)) {
            noted.uses += 1;
        }
    }

    /// Notes a detach that is about to be made. Returns whether it ends the context. If the driver refuses,
    /// [`Contexts::attach`] reverts it.
    #[must_use]
    pub fn detach(&self, context: CUcontext) -> bool {
        let mut known = self.open();
        let Some(noted) = known.contexts.get_mut(&key(context)) else {
            return false;
        };
        noted.uses = noted.uses.saturating_sub(1);
        noted.uses == 0
    }

    /// Notes a release of a device's primary context that is about to be made. Returns the context if it is
    /// the last. If the driver refuses, [`Contexts::retain_primary`] reverts it.
    #[must_use]
    pub fn release_primary(&self, device: CUdevice) -> Option<CUcontext> {
        let mut known = self.open();
        let primary = known.primary.get_mut(&device)?;
        primary.retained = primary.retained.saturating_sub(1);
        (primary.retained == 0).then_some(primary.context)
    }

    /// Notes a new green context.
    pub fn insert_green(&self, handle: CUgreenCtx, green: Green) {
        let mut known = self.open();
        known.greens.insert(handle, green);
        if !green.context.is_null() {
            known.add_stand_in(green.device, key(green.context));
        }
    }

    /// Removes a green context that is about to be destroyed.
    #[must_use]
    pub fn remove_green(&self, handle: CUgreenCtx) -> Option<Green> {
        self.open().greens.remove(&handle)
    }

    /// Removes a context that is about to be destroyed: its handle may be reused immediately afterwards.
    pub fn remove(&self, context: CUcontext) -> Closing {
        self.last.store(0, Ordering::Relaxed);
        let mut known = self.open();
        let Some(noted) = known.contexts.remove(&key(context)) else {
            return Closing::default();
        };
        let mut gone = vec![(key(context), noted)];
        let primary = known.primary.get(&noted.device).copied();
        let primary = primary.filter(|primary| primary.context == context);
        if primary.is_some() {
            known.primary.remove(&noted.device);
            gone.extend(known.take_stand_ins(noted.device));
        }
        Closing { gone, primary: primary.map(|primary| (noted.device, primary)) }
    }

    /// Restores a context that was not destroyed. Another thread may have retained it meanwhile.
    pub fn restore(&self, closing: Closing) {
        self.last.store(0, Ordering::Relaxed);
        let keys: Vec<u64> = closing.keys().collect();
        let mut known = self.open();
        for (key, noted) in closing.gone {
            let fresh = Noted::new(noted.device, ContextCharge::default());
            let there = known.contexts.entry(key).or_insert(fresh);
            there.charge.add(noted.charge);
            there.uses = there.uses.max(noted.uses);
        }
        if let Some((device, primary)) = closing.primary {
            known.add_primary(device, primary);
            for key in keys.into_iter().filter(|&other| other != key(primary.context)) {
                known.add_stand_in(device, key);
            }
        }
    }

    /// The device of a context that was created during the lookup.
    #[must_use]
    pub fn device(&self, context: CUcontext) -> Option<CUdevice> {
        let known = self.open();
        known.contexts.get(&key(context)).map(|noted| noted.device)
    }

    /// The primary context for which the handle of a green one stands in.
    #[must_use]
    pub fn primary_of(&self, stand_in: CUcontext) -> Option<CUcontext> {
        let known = self.open();
        let mut all = known.stand_ins.iter();
        let (device, _) = all.find(|(_, keys)| keys.contains(&key(stand_in)))?;
        known.primary.get(device).map(|primary| primary.context)
    }

    /// The primary context of a device, if it was retained.
    #[must_use]
    pub fn primary(&self, device: CUdevice) -> Option<CUcontext> {
        let known = self.open();
        known.primary.get(&device).map(|primary| primary.context)
    }
}

impl Known {
    fn add_primary(&mut self, device: CUdevice, more: Primary) {
        match self.primary.get_mut(&device) {
            Some(primary) if primary.context == more.context => primary.retained += more.retained,
            _ => {
                self.primary.insert(device, more);
            }
        }
    }

    fn add_stand_in(&mut self, device: CUdevice, key: u64) {
        let fresh = Noted::new(device, ContextCharge::default());
        self.contexts.entry(key).or_insert(fresh);
        let stand_ins = self.stand_ins.entry(device).or_default();
        if !stand_ins.contains(&key) {
            stand_ins.push(key);
        }
    }

    fn take_stand_ins(&mut self, device: CUdevice) -> Vec<(u64, Noted)> {
        let keys = self.stand_ins.remove(&device).unwrap_or_default();
        let take = |key| Some((key, self.contexts.remove(&key)?));
        keys.into_iter().filter_map(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(number: usize) -> CUcontext {
        CUcontext(std::ptr::without_provenance_mut(number << 12))
    }

    fn own(bytes: u64) -> ContextCharge {
        ContextCharge { own: bytes, ..ContextCharge::default() }
    }

    fn charges(closing: &Closing) -> Vec<(CUdevice, u64)> {
        closing.charges().collect()
    }

    #[test]
    fn only_the_last_release_ends_a_primary_context() {
        let (contexts, primary) = (Contexts::default(), context(1));
        assert_eq!(contexts.release_primary(3), None, "never retained");
        contexts.retain_primary(primary, 3);
        contexts.charge(primary, 3, own(70));
        contexts.retain_primary(primary, 3);
        assert_eq!(contexts.release_primary(3), None);
        assert_eq!(contexts.release_primary(3), Some(primary));
        // Refused, and retained by another thread meanwhile.
        let closing = contexts.remove(primary);
        assert_eq!(charges(&closing), [(3, 70)]);
        assert_eq!((contexts.device(primary), contexts.primary(3)), (None, None));
        contexts.retain_primary(primary, 3);
        contexts.charge(primary, 3, own(5));
        contexts.restore(closing);
        contexts.retain_primary(primary, 3);
        assert_eq!(contexts.release_primary(3), None);
        assert_eq!(contexts.release_primary(3), Some(primary));
        assert_eq!(charges(&contexts.remove(primary)), [(3, 75)], "no charge is lost");
    }

    #[test]
    fn a_created_context_ends_with_its_last_detach() {
        let (contexts, created) = (Contexts::default(), context(1));
        assert!(!contexts.detach(created), "a stranger's end is its own");
        assert_eq!(charges(&contexts.insert(created, 0, own(9))), []);
        contexts.attach(created);
        assert!(!contexts.detach(created));
        assert!(contexts.detach(created));
        contexts.attach(created); // the driver refused
        assert!(contexts.detach(created));
        assert_eq!(charges(&contexts.insert(created, 1, own(4))), [(0, 9)], "its handle again");
        assert_eq!(contexts.device(created), Some(1));
    }

    #[test]
    fn a_green_context_ends_with_the_primary_one() {
        let (contexts, primary, stand_in) = (Contexts::default(), context(1), context(2));
        let handle = CUgreenCtx(std::ptr::without_provenance_mut(16));
        let green = Green { device: 0, context: stand_in };
        contexts.retain_primary(primary, 0);
        contexts.insert_green(handle, green);
        contexts.charge(stand_in, 0, own(3));
        let closing = contexts.remove(primary);
        assert_eq!(closing.keys().collect::<Vec<_>>(), [key(primary), key(stand_in)]);
        assert_eq!(contexts.device(stand_in), None);
        contexts.restore(closing);
        assert_eq!(contexts.device(stand_in), Some(0));
        // Also if it was destroyed before.
        assert_eq!(contexts.remove_green(handle), Some(green));
        assert_eq!(contexts.remove_green(handle), None);
        assert_eq!(contexts.remove(primary).keys().count(), 2);
        assert_eq!(contexts.remove(primary), Closing::default());
    }

    #[test]
    fn a_lowered_limit_releases_at_most_its_charge() {
        let (contexts, created) = (Contexts::default(), context(1));
        let mut raised = ContextCharge::default();
        raised.limits[2] = 100;
        contexts.charge(created, 0, raised);
        assert_eq!(contexts.lower(created, 2, 30), 30);
        assert_eq!(contexts.lower(created, 1, 30), 0);
        assert_eq!(contexts.lower(created, LIMITS, 30), 0);
        assert_eq!(contexts.lower(created, 2, u64::MAX), 70);
        assert_eq!(charges(&contexts.remove(created)), [(0, 0)]);
    }
}
