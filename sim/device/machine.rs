//! The public interface: the simulated machine as one process sees it.
//!
//! Every operation takes the lock, drops dead processes, advances the GPU to the present, does its
//! work and releases the lock. Long work (sleeping, wiping memory) happens outside the lock.

mod attached;
mod checkpoint;
mod ends;
mod kernel;
mod memory;
mod observe;
mod quota;
mod work;

use crate::alive::{self, Holder, Locks};
use crate::clock::{self, now_ns};
use crate::config::Limits;
use crate::directory;
use crate::error::{DeviceError, Error};
use crate::exports::Exports;
use crate::faults::Faults;
use crate::high_water;
use crate::layout::{DRIVER, OBSERVER, State};
use crate::limits::{PAGE_BYTES, REAP_EVERY_NS};
use crate::lock::{self, Guard};
use crate::mapping::Mapping;
use crate::process;
use crate::properties::Properties;
use crate::repair::repair;
use crate::slice;
use crate::time;
use crate::types::GpuInfo;
pub use checkpoint::ProcessState;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The purpose of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Reads only: NVML, tools.
    Observer,
    /// Makes contexts and work: the driver.
    Driver,
}

/// A simulated machine this process is attached to.
pub struct Machine {
    dir: PathBuf,
    mapping: Mapping,
    locks: Locks,
    exports: Exports,
    vram: Vec<File>,
    gpus: Vec<GpuInfo>,
    slot: usize,
    identity: u64,
    pid: u32,
    /// Stands for this process's descriptors, where a forked child's copies of them count.
    _descriptor: Option<File>,
    /// Replace the directory's faults for this process.
    faults: Option<Faults>,
    /// The driver's memory limits, if this machine's has any.
    limits: Limits,
    /// The control group this process was last seen in.
    cgroup: AtomicU64,
    /// Held while blocks given up by this process or left by dead ones are wiped.
    scrubbing: Mutex<()>,
    /// A repair has assigned blocks to this process for wiping, and no wipe has begun.
    wiping_due: AtomicBool,
}

impl Machine {
    /// Attaches to the device in `dir`, making it from `GPUSLICE_SIM` if it is not there. Each
    /// machine opened stays attached until the process ends (see the note on closing in `alive`).
    pub fn open(dir: &Path, role: Role) -> Result<Machine, Error> {
        let faults = directory::own_faults()?;
        let opened = directory::open(dir)?;
        let locks = Locks::keep(opened.locks);
        let identity = alive::identity();
        let slot = ends::free_slot(locks, &opened.mapping, identity, dir)?;
        let counts = role == Role::Driver && opened.mapping.header().properties.held != 0;
        let descriptor = counts.then(|| opened.exports.hold_process(slot)).transpose();
        let descriptor = descriptor.map_err(|source| Error::Io {
            doing: "opening a file in",
            path: dir.into(),
            source,
        })?;
        let machine = Machine {
            dir: opened.dir,
            limits: Limits::from_number(opened.mapping.header().limits),
            cgroup: AtomicU64::new(0),
            gpus: gpu_facts(&opened.mapping),
            mapping: opened.mapping,
            locks,
            exports: opened.exports,
            vram: opened.vram,
            slot,
            identity,
            pid: std::process::id(),
            _descriptor: descriptor,
            faults,
            scrubbing: Mutex::new(()),
            wiping_due: AtomicBool::new(false),
        };
        machine.enter(role);
        machine.note_cgroup();
        Ok(machine)
    }

    fn enter(&self, role: Role) {
        let slice = slice::own();
        let (mut state, died) =
            lock::acquire(&self.mapping, self.slot, true, |slot| !self.is_alive(slot));
        if died {
            repair(&mut state, self.slot);
        }
        self.reap(&mut state, now_ns());
        let kind = if role == Role::Driver { DRIVER } else { OBSERVER };
        process::enter(&mut state, self.slot, kind);
        self.mapping.header().frozen[self.slot].store(0, Ordering::Release);
        self.mapping.header().unsettled[self.slot].store(0, Ordering::Relaxed);
        if let Some(name) = slice.filter(|_| role == Role::Driver) {
            state.slots[self.slot].mark = high_water::of(&mut state, &name);
        }
        drop(state);
        self.scrub();
    }

    /// Whether this is the process that attached (and not a forked child of it).
    pub fn is_mine(&self) -> bool {
        self.pid == std::process::id()
    }

    /// The directory of the device's files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The GPUs, by index.
    pub fn gpus(&self) -> &[GpuInfo] {
        &self.gpus
    }

    /// CUDA version of the driver: major, minor.
    pub fn driver(&self) -> (u32, u32) {
        let [major, minor] = self.mapping.header().driver;
        (major, minor)
    }

    /// What the driver is strict in.
    pub fn properties(&self) -> &Properties {
        &self.mapping.header().properties
    }

    /// Whether NVML lists a client of an MPS server on a GPU.
    pub fn has_mps(&self, gpu: usize) -> bool {
        self.mapping.header().mps.load(Ordering::Relaxed) >> gpu & 1 != 0
    }

    /// Device memory every context takes for itself.
    pub fn context_bytes(&self) -> u64 {
        u64::from(self.mapping.header().context_pages) * PAGE_BYTES
    }

    /// Device memory of a loaded module whose image has so many bytes.
    pub fn module_bytes(&self, image: u64) -> u64 {
        match u64::from(self.mapping.header().module_pages) * PAGE_BYTES {
            0 => 0,
            least => least.max(image),
        }
    }

    /// The memory file of a GPU; [`crate::Extent`]s are pieces of it, to be mapped shared.
    pub fn vram(&self, gpu: usize) -> Option<&File> {
        self.vram.get(gpu)
    }

    fn gpu(&self, gpu: usize) -> Result<usize, DeviceError> {
        if gpu < self.gpus.len() { Ok(gpu) } else { Err(DeviceError::NoSuchGpu) }
    }

    /// Whether process `pid`, in the caller's pid namespace, holds the device's lock at this moment. A process stopped
    /// with the lock blocks the device for all processes, which a driver in the kernel never allows: a caller that
    /// stops a process checks this and tries again.
    pub fn is_inside(&self, pid: i32) -> bool {
        let owner = lock::owner(&self.mapping);
        owner.is_some_and(|slot| self.locks.holder(slot) == Holder::Process(pid))
    }

    /// The lock; a process that another one has locked for a checkpoint gets it only afterwards.
    fn lock(&self) -> Guard<'_> {
        let mut state = self.lock_now();
        while self.is_frozen() {
            drop(state);
            clock::sleep_until_ns(now_ns() + checkpoint::LOOK_NS);
            state = self.lock_now();
        }
        state
    }

    fn lock_now(&self) -> Guard<'_> {
        let (mut state, died) =
            lock::acquire(&self.mapping, self.slot, false, |slot| !self.is_alive(slot));
        if died {
            repair(&mut state, self.slot);
            // The reaping that is now due finds what the dead process held; blocks that it was
            // just releasing are assigned to this process already.
            state.last_reap_ns = 0;
            self.wiping_due.store(true, Ordering::Relaxed);
        }
        state
    }

    /// Does `work` on a state in which `gpu` (or every GPU) is up to date.
    fn with<R>(&self, gpu: Option<usize>, work: impl FnOnce(&mut State, u64) -> R) -> R {
        self.look(self.lock(), gpu, work)
    }

    fn look<R>(
        &self,
        state: Guard<'_>,
        gpu: Option<usize>,
        work: impl FnOnce(&mut State, u64) -> R,
    ) -> R {
        let (result, left) = self.look_only(state, gpu, work);
        if left {
            self.scrub();
        }
        result
    }

    /// The same without wiping the memory of dead processes; returns whether there is any. For a
    /// caller that is wiping already.
    fn look_only<R>(
        &self,
        mut state: Guard<'_>,
        gpu: Option<usize>,
        work: impl FnOnce(&mut State, u64) -> R,
    ) -> (R, bool) {
        let now = now_ns();
        let due = self.wiping_due.swap(false, Ordering::Relaxed);
        let left =
            now.saturating_sub(state.last_reap_ns) >= REAP_EVERY_NS && self.reap(&mut state, now);
        self.end_moves(&mut state, now);
        bring_up(&mut state, gpu, self.gpus.len(), now);
        self.sample(&mut state, gpu, now);
        let result = work(&mut state, now);
        drop(state);
        (result, left || due)
    }

    fn is_alive(&self, slot: usize) -> bool {
        self.is_own(slot) || self.locks.holder(slot) != Holder::None
    }

    /// Whether a slot belongs to this process, through this library or another.
    fn is_own(&self, slot: usize) -> bool {
        let identities = &self.mapping.header().identities;
        identities.get(slot).is_some_and(|id| id.load(Ordering::Relaxed) == self.identity)
    }
}

fn bring_up(state: &mut State, gpu: Option<usize>, gpus: usize, now: u64) {
    let range = gpu.map_or(0..gpus, |one| one..one + 1);
    for index in range {
        time::advance(&mut state.gpus[index], &mut state.contexts, now);
    }
}

fn gpu_facts(mapping: &Mapping) -> Vec<GpuInfo> {
    let header = mapping.header();
    let [major, minor] = header.compute_capability;
    let devices = header.devices.iter().take(header.gpus as usize).enumerate();
    let facts = devices.map(|(index, device)| {
        let name = &device.name[..(device.name_len as usize).min(device.name.len())];
        GpuInfo {
            index,
            uuid: device.uuid,
            name: String::from_utf8_lossy(name).into_owned(),
            total_bytes: u64::from(device.pages) * PAGE_BYTES,
            pci: (0, 0x10 + index as u8, 0),
            compute_capability: (major, minor),
            multiprocessors: header.multiprocessors,
        }
    });
    facts.collect()
}
