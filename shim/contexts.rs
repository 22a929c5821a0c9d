//! The contexts of this process: their devices, what they cost, and what ends them.
//!
//! A context takes memory that no call names (its measured price, and what raised limits add), and
//! everything allocated in it ends with it. So its charge is written down here, beside its device, and
//! given back with the rest. Three kinds end differently: one that was created ends when it is
//! destroyed, or detached as often as attached; a device's primary context with its last release or a
//! reset; a green context only lets go of the primary one, in whose memory it lives.
#![forbid(unsafe_code)]

use crate::lane::key;
use core::sync::atomic::{AtomicU64, Ordering};
use gpuslice_nvabi::types::{CUcontext, CUdevice, CUgreenCtx};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::ACCOUNTS_MAX;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Limits of a context that cost memory: `CU_LIMIT_STACK_SIZE` is the first of them, 0.
pub const LIMITS: usize = 5;

/// What a context costs, bytes of one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// The context itself.
    pub own: u64,
    /// What each raised limit added.
    pub limits: [u64; LIMITS],
}

impl Charge {
    /// All of it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.limits.iter().sum::<u64>() + self.own
    }

    fn add(&mut self, more: Charge) {
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
    /// The context asked for last, and its lane in the top byte (as in [`crate::lane::Devices`]): one
    /// word, so that both always belong together. Almost always the answer to the next question.
    pub(crate) last: AtomicU64,
    /// Held while something is made whose price is measured, by lane.
    alone: [Mutex<()>; ACCOUNTS_MAX],
}

#[derive(Debug, Default)]
struct Known {
    contexts: HashMap<u64, Noted>,
    primary: HashMap<CUdevice, Primary>,
    greens: HashMap<CUgreenCtx, Green>,
    /// Contexts that stand or stood for green ones: what was allocated in them is the primary one's.
    stand_ins: HashMap<CUdevice, Vec<u64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Noted {
    device: CUdevice,
    charge: Charge,
    /// Attached so often and not detached; 1 from its creation.
    uses: u64,
}

impl Noted {
    fn new(device: CUdevice, charge: Charge) -> Noted {
        Noted {
            device,
            charge,
            uses: 1,
        }
    }
}

/// A device's primary context, and how often it was retained and not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Primary {
    context: CUcontext,
    retained: u64,
}

/// A green context: its device, and the context that stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Green {
    /// Of this device.
    pub device: CUdevice,
    /// Null where the driver does not tell.
    pub context: CUcontext,
}

/// What was known of a context that is being destroyed.
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

    /// What they cost, by device.
    pub fn charges(&self) -> impl Iterator<Item = (CUdevice, u64)> {
        self.gone
            .iter()
            .map(|(_, noted)| (noted.device, noted.charge.bytes()))
    }
}

impl Contexts {
    fn open(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// While this is held, nobody else of the process makes what must be measured on that lane.
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

    /// A context was made. Gives what is noted of one that had the same handle, and must be gone.
    pub fn insert(&self, context: CUcontext, device: CUdevice, charge: Charge) -> Closing {
        let gone = self.remove(context);
        let mut known = self.open();
        for stand_ins in known.stand_ins.values_mut() {
            stand_ins.retain(|&other| other != key(context));
        }
        let noted = Noted::new(device, charge);
        known.contexts.insert(key(context), noted);
        gone
    }

    /// A device's primary context was retained, or a green context did so.
    pub fn retain_primary(&self, context: CUcontext, device: CUdevice) {
        self.last.store(0, Ordering::Relaxed);
        let mut known = self.open();
        let fresh = Noted::new(device, Charge::default());
        known.contexts.entry(key(context)).or_insert(fresh);
        known.add_primary(
            device,
            Primary {
                context,
                retained: 1,
            },
        );
    }

    /// A context costs this much more; nothing was noted of it so far if it was made in a way
    /// that passed us by.
    pub fn charge(&self, context: CUcontext, device: CUdevice, more: Charge) {
        let mut known = self.open();
        let fresh = Noted::new(device, Charge::default());
        let noted = known.contexts.entry(key(context)).or_insert(fresh);
        noted.charge.add(more);
    }

    /// A limit was lowered by `bytes`: gives what of its charge goes back.
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

    /// The context was attached to once more.
    pub fn attach(&self, context: CUcontext) {
        if let Some(noted) = self.open().contexts.get_mut(&key(context)) {
            noted.uses += 1;
        }
    }

    /// The context is about to be detached from: whether that is its end. If the driver refuses,
    /// [`Contexts::attach`] takes it back.
    #[must_use]
    pub fn detach(&self, context: CUcontext) -> bool {
        let mut known = self.open();
        let Some(noted) = known.contexts.get_mut(&key(context)) else {
            return false;
        };
        noted.uses = noted.uses.saturating_sub(1);
        noted.uses == 0
    }

    /// A device's primary context is about to be released: the context if that is the last time. If
    /// the driver refuses, [`Contexts::retain_primary`] takes it back.
    #[must_use]
    pub fn release_primary(&self, device: CUdevice) -> Option<CUcontext> {
        let mut known = self.open();
        let primary = known.primary.get_mut(&device)?;
        primary.retained = primary.retained.saturating_sub(1);
        (primary.retained == 0).then_some(primary.context)
    }

    /// A green context was made.
    pub fn insert_green(&self, handle: CUgreenCtx, green: Green) {
        let mut known = self.open();
        known.greens.insert(handle, green);
        if !green.context.is_null() {
            known.add_stand_in(green.device, key(green.context));
        }
    }

    /// A green context is about to be destroyed.
    #[must_use]
    pub fn remove_green(&self, handle: CUgreenCtx) -> Option<Green> {
        self.open().greens.remove(&handle)
    }

    /// A context is about to be destroyed: its handle may be another's as soon as it is.
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
        Closing {
            gone,
            primary: primary.map(|primary| (noted.device, primary)),
        }
    }

    /// A context was not destroyed after all. Another thread may have retained it meanwhile.
    pub fn restore(&self, closing: Closing) {
        self.last.store(0, Ordering::Relaxed);
        let keys: Vec<u64> = closing.keys().collect();
        let mut known = self.open();
        for (key, noted) in closing.gone {
            let fresh = Noted::new(noted.device, Charge::default());
            let there = known.contexts.entry(key).or_insert(fresh);
            there.charge.add(noted.charge);
            there.uses = there.uses.max(noted.uses);
        }
        if let Some((device, primary)) = closing.primary {
            known.add_primary(device, primary);
            for key in keys
                .into_iter()
                .filter(|&other| other != key(primary.context))
            {
                known.add_stand_in(device, key);
            }
        }
    }

    /// The device of a context that was made while we looked.
    #[must_use]
    pub fn device(&self, context: CUcontext) -> Option<CUdevice> {
        let known = self.open();
        known.contexts.get(&key(context)).map(|noted| noted.device)
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
        let fresh = Noted::new(device, Charge::default());
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

    fn own(bytes: u64) -> Charge {
        Charge {
            own: bytes,
            ..Charge::default()
        }
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
        assert_eq!(
            (contexts.device(primary), contexts.primary(3)),
            (None, None)
        );
        contexts.retain_primary(primary, 3);
        contexts.charge(primary, 3, own(5));
        contexts.restore(closing);
        contexts.retain_primary(primary, 3);
        assert_eq!(contexts.release_primary(3), None);
        assert_eq!(contexts.release_primary(3), Some(primary));
        assert_eq!(
            charges(&contexts.remove(primary)),
            [(3, 75)],
            "no charge is lost"
        );
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
        assert_eq!(
            charges(&contexts.insert(created, 1, own(4))),
            [(0, 9)],
            "its handle again"
        );
        assert_eq!(contexts.device(created), Some(1));
    }

    #[test]
    fn a_green_context_ends_with_the_primary_one() {
        let (contexts, primary, stand_in) = (Contexts::default(), context(1), context(2));
        let handle = CUgreenCtx(std::ptr::without_provenance_mut(16));
        let green = Green {
            device: 0,
            context: stand_in,
        };
        contexts.retain_primary(primary, 0);
        contexts.insert_green(handle, green);
        contexts.charge(stand_in, 0, own(3));
        let closing = contexts.remove(primary);
        assert_eq!(
            closing.keys().collect::<Vec<_>>(),
            [key(primary), key(stand_in)]
        );
        assert_eq!(contexts.device(stand_in), None);
        contexts.restore(closing);
        assert_eq!(contexts.device(stand_in), Some(0));
        // Also when it was destroyed before.
        assert_eq!(contexts.remove_green(handle), Some(green));
        assert_eq!(contexts.remove_green(handle), None);
        assert_eq!(contexts.remove(primary).keys().count(), 2);
        assert_eq!(contexts.remove(primary), Closing::default());
    }

    #[test]
    fn a_lowered_limit_gives_back_no_more_than_it_cost() {
        let (contexts, created) = (Contexts::default(), context(1));
        let mut raised = Charge::default();
        raised.limits[2] = 100;
        contexts.charge(created, 0, raised);
        assert_eq!(contexts.lower(created, 2, 30), 30);
        assert_eq!(contexts.lower(created, 1, 30), 0);
        assert_eq!(contexts.lower(created, LIMITS, 30), 0);
        assert_eq!(contexts.lower(created, 2, u64::MAX), 70);
        assert_eq!(charges(&contexts.remove(created)), [(0, 0)]);
    }
}
