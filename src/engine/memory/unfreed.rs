//! Memory of ended processes that the driver has not freed yet.
//!
//! # Problem
//! A process's end and the end of its memory are two moments. A driver may free memory seconds after the process
//! is gone. NVML names no process for it. If its grants ended with the process, the next process would be granted
//! memory that the device does not have, or take what is promised to another container.
//!
//! # Idea
//! What an ended process was charged stays charged to its container as *unfreed*. Each look at the device
//! compares the memory in use with the memory that living processes explain: NVML's figures, managed memory
//! that it does not show, and what they claim where NVML has no figure. The rest is the driver's own, which the
//! last looks before the end show, and unfreed memory: no more than that stays charged. Processes begin, take and free
//! memory while NVML is asked: the driver's own is what is there at least, unfreed memory what is there at most.
//! A claim to hold memory explains only what is charged to its process, so a false one makes the liar's own promise
//! worth less, and no other's.
//!
//! Managed memory may be on the host, where it explains nothing, and come to the GPU after the look. So a container's
//! own hides none of its unfreed memory, or the container would have both. What other containers have hides as much:
//! else each process with managed memory would delay what others begin again.
//!
//! A figure may be older than its question ([`crate::FIGURE_AGE`]), so a look shows nothing of an end just before
//! it. Nor are all figures of one instant, so two looks must agree. After [`crate::FREED_WITHIN`] the memory is no
//! longer charged, whatever the looks show.
//!
//! A request that fits only when unfreed memory is free waits for that. It is refused at once if it does not fit
//! even then.
//!
//! A container's end leaves its unfreed memory to the GPU. A container that is admitted then is charged for as much
//! of it as does not fit beside all promises, up to its own cap. So the new container waits, and no older one does.
//! The memory beyond that was borrowed from older containers: it stays with the GPU, and their claims wait for it
//! ([`super::borrow`]).
//!
//! A process may end between the creation of its first context and the charge of it. Then it was charged nothing,
//! and its page claims a context: it is charged what the container's others cost, or the most that contexts are
//! known to take.
//!
//! A restarted daemon does not know what ended before it, and a process may end before its second context is charged:
//! such memory is charged to no container. So looks within [`crate::FREED_WITHIN`] after a restore or an end do not
//! tell the driver's own memory: they would hide as much of what ends later. It is not lent for that: of what the last
//! look showed, the part beyond all unfreed memory is in use too. After a restore the first look is due at once.
//!
//! Without NVML nothing shows when memory is free, and a process's memory is no longer charged when it has ended.

use alloc::vec::Vec;
use gpuslice_wire::ids::{ClientId, GpuUuid, Lane};
use gpuslice_wire::units::{Bytes, Instant};

use crate::action::Actions;
use crate::engine::Engine;
use crate::index::ContainerIndex;
use crate::record::Record;
use crate::unfreed::{FREED_WITHIN, Unfreed};

impl Engine {
    /// When the device should be looked at: for unfreed memory, if there is any, or for the first time after a restore,
    /// which NVML may fail to show.
    #[must_use]
    pub fn look_due(&self) -> Option<Instant> {
        let restored = self.gpus.iter().filter_map(|gpu| gpu.beside.restored);
        let restored = restored.filter(|at| self.now < at.plus(FREED_WITHIN));
        self.unfreed().filter_map(Unfreed::visible).chain(restored).min()
    }

    /// The GPUs with slices or unfreed memory.
    #[must_use]
    pub fn gpus_in_use(&self) -> Vec<GpuUuid> {
        let slices = || self.containers.iter().flat_map(|(_, it)| &it.slices.gpus);
        let all = self.gpus.iter().enumerate().filter(|(at, gpu)| {
            gpu.beside.unfreed.visible().is_some() || slices().any(|it| it.gpu == Some(*at))
        });
        all.map(|(_, gpu)| gpu.uuid).collect()
    }

    /// The part of a process's memory on a GPU that NVML's figure for it does not show, by its own claim; where there
    /// is no figure, all of it. Never more than is charged to it, and nothing while its memory is on the host.
    #[must_use]
    pub fn claimed(&self, client: ClientId, lane: Lane, has_figure: bool) -> Bytes {
        let client = self.clients.get(client).filter(|it| !self.is_away(it.index));
        let mine = client.and_then(|it| it.lanes.get(lane));
        mine.map_or(Bytes::ZERO, |mine| {
            let claim = if has_figure { mine.claims.unseen } else { mine.claims.held };
            claim.min(Bytes(u64::try_from(mine.reserved()).unwrap_or(u64::MAX)))
        })
    }

    /// When unfreed memory is no longer charged.
    pub(crate) fn unfreed_until(&self) -> Option<Instant> {
        self.unfreed().filter_map(Unfreed::deadline).min()
    }

    /// Unfreed memory, if there may be any.
    fn unfreed(&self) -> impl Iterator<Item = &Unfreed> {
        self.has_unfreed.then(|| self.all_unfreed()).into_iter().flatten()
    }

    /// Of each slice, and of ended containers on each GPU.
    fn all_unfreed(&self) -> impl Iterator<Item = &Unfreed> {
        let slices = self.containers.iter().flat_map(|(_, it)| &it.slices.gpus);
        let slices = slices.map(|slice| &slice.unfreed);
        slices.chain(self.gpus.iter().map(|gpu| &gpu.beside.unfreed))
    }

    /// Whether unfreed memory is looked for if there is any.
    pub(crate) fn knows_unfreed(&self) -> bool {
        self.has_unfreed || self.all_unfreed().all(|it| it.sum() == Bytes::ZERO)
    }

    /// A look at a device that was asked for at `asked` shows so much in use beside living processes.
    pub(crate) fn device_looked(
        &mut self,
        gpu: GpuUuid,
        asked: Instant,
        (least, most): (Bytes, Bytes),
        actions: &mut Actions,
    ) {
        let Some(at) = self.gpus.iter().position(|it| it.uuid == gpu) else {
            return;
        };
        let on = |slice: &crate::lifecycle::Slice| slice.gpu == Some(at);
        let slices = || self.containers.iter().flat_map(|(_, it)| &it.slices.gpus);
        let quiet = slices().filter(|it| on(it)).all(|it| it.unfreed == Unfreed::default());
        let known = &mut self.gpus[at].beside;
        (known.least, known.restored) = (least, None);
        if quiet && known.unfreed == Unfreed::default() && self.now >= known.unknown_until {
            (known.own, known.last) = ([least, known.own[0]], None);
            return;
        }
        known.own = known.own.map(|own| own.min(most));
        let own = known.own[0].min(known.own[1]);
        let left = most.saturating_sub(own);
        let Some((earlier, before)) = known.last.replace((asked, left)) else {
            return;
        };
        self.settle_unfreed(actions, |gpu, it, unseen| {
            if gpu == at {
                it.look(earlier, left.max(before).saturating_add(unseen));
            }
        });
    }

    /// Ends what has been charged for too long.
    pub(crate) fn end_unfreed(&mut self, actions: &mut Actions) {
        let (now, until) = (self.now, self.unfreed_until());
        self.has_unfreed = until.is_some();
        if until.is_some_and(|until| until <= now) {
            self.settle_unfreed(actions, |_, it, _| it.expire(now));
        }
    }

    /// Changes all unfreed memory, by GPU and with what its container claims that NVML does not show. Decides on the
    /// growth that waited for it.
    fn settle_unfreed(
        &mut self,
        actions: &mut Actions,
        change: impl Fn(usize, &mut Unfreed, Bytes),
    ) {
        for (at, gpu) in self.gpus.iter_mut().enumerate() {
            change(at, &mut gpu.beside.unfreed, Bytes::ZERO);
        }
        let mut changed: Vec<(ContainerIndex, Lane)> = Vec::new();
        for (index, lane) in self.slices_with_unfreed() {
            let unseen = self.unseen(index, lane);
            let Some(slice) = self.account(index, lane) else { continue };
            let (Some(gpu), was) = (slice.gpu, slice.unfreed.sum()) else { continue };
            change(gpu, &mut slice.unfreed, unseen);
            let now = slice.unfreed.sum();
            if now != was {
                slice.account.recount(was.0.into(), now.0.into());
                changed.push((index, lane));
            }
        }
        changed.into_iter().for_each(|(index, lane)| self.serve(index, lane, actions));
        self.find_lenders();
    }

    fn slices_with_unfreed(&self) -> Vec<(ContainerIndex, Lane)> {
        let all = self.containers.iter().flat_map(|(index, container)| {
            let slices = container.slices.lanes().map(move |lane| (index, lane));
            slices.filter(|(_, lane)| {
                container.slices.get(*lane).is_some_and(|it| it.unfreed.sum() > Bytes::ZERO)
            })
        });
        all.collect()
    }

    /// What the container's processes claim to have on a GPU that NVML does not show.
    fn unseen(&self, index: ContainerIndex, lane: Lane) -> Bytes {
        let clients = self.containers.get(index).into_iter().flat_map(|it| &it.clients);
        let claims = clients.map(|client| self.claimed(*client, lane, true));
        claims.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// A container is restored: processes may have ended just before, and the driver's own memory is not known yet.
    pub(crate) fn expect_unfreed(&mut self, record: &Record) {
        let now = self.now;
        for gpu in &mut self.gpus {
            if record.lanes.iter().any(|lane| lane.gpu == gpu.uuid) {
                gpu.beside.ended(now);
                gpu.beside.restored = Some(now);
            }
        }
    }

    /// A container ends: its GPUs keep its unfreed memory.
    pub(crate) fn leave_unfreed(&mut self, index: ContainerIndex) {
        let Some(container) = self.containers.get_mut(index) else {
            return;
        };
        for slice in &mut container.slices.gpus {
            let left = core::mem::take(&mut slice.unfreed);
            slice.account.release(left.sum());
            if let Some(gpu) = slice.gpu {
                self.gpus[gpu].beside.unfreed.append(left);
            }
        }
    }

    /// A container was promised more of a GPU: what does not fit there beside all promises is charged to it, as far as
    /// its promise goes.
    pub(crate) fn inherit_unfreed(&mut self, index: ContainerIndex, lane: Lane) {
        let slice = self.account(index, lane);
        let its = slice.and_then(|slice| Some((slice.gpu?, slice.account.promised())));
        let Some((gpu, promised)) = its.filter(|_| !self.config.oversubscribe) else {
            return;
        };
        let room = self.capacities()[gpu].left();
        let beside = &mut self.gpus[gpu].beside.unfreed;
        let charged = beside.take(beside.sum().saturating_sub(room).min(promised));
        if let Some(slice) = self.account(index, lane) {
            let was = slice.unfreed.sum();
            slice.unfreed.append(charged);
            slice.account.recount(was.0.into(), slice.unfreed.sum().0.into());
        }
    }
}
