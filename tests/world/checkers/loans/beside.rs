//! Memory of a GPU beside that of living processes: of ended ones, and the driver's own.
//!
//! # What is promised
//! * What a process was charged counts in full after its end, until two looks at the device that can show the end: they
//!   were asked for [`FIGURE_AGE`] after it, or later. From then on no more of it counts than one of them shows, and
//!   what living processes of its container claim to have that NVML does not show. None counts for longer than
//!   [`FREED_WITHIN`].
//! * The driver's own memory counts beside that: the last two looks show it at which no process had ended just before.
//! * What the last look shows is in use, whatever it is.
//! * What an ended container leaves is charged to none, or to one that was admitted, or promised more, later. What of
//!   it was borrowed remains so.
//!
//! # How the checker knows
//! It sees each end and each look, and keeps bounds: what is in use at least and at most.

use gpuslice_engine::{Cut, FIGURE_AGE, FREED_WITHIN, Record};

use super::*;

/// What an ended process has left.
#[derive(Clone, Debug)]
struct End {
    /// The account that is charged; `None` if its container has ended.
    key: Option<LaneKey>,
    /// Those that may be charged instead.
    heirs: Vec<LaneKey>,
    at: u64,
    least: u128,
    most: u128,
}

/// A look at the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) now: u64,
    pub(super) asked: u64,
    pub(super) least: u128,
    pub(super) most: u128,
}

/// What is in use beside living processes.
#[derive(Clone, Debug, Default)]
pub(super) struct Beside {
    ends: Vec<End>,
    /// Until then a look shows memory of ended processes, surely and perhaps.
    mixed: u64,
    perhaps: u64,
    /// What the looks showed that may tell the driver's own memory, and whether each one does: since the last two that
    /// do.
    own: Vec<(bool, u128)>,
    /// The least that counts as the driver's own.
    least: u128,
    last: Option<Look>,
}

impl Beside {
    /// A process ends, or is replaced by another program, and leaves so much at least and at most.
    pub(super) fn ends(&mut self, key: LaneKey, at: u64, (least, most): (u128, u128)) {
        if most > 0 {
            self.ends.push(End { key: Some(key), heirs: Vec::new(), at, least, most });
        }
    }

    /// A process has ended: looks show memory that may be charged to none.
    pub(super) fn mixes(&mut self, now: u64) {
        self.mixed = now + FREED_WITHIN.0;
        self.may_mix(now);
    }

    /// A process may have ended.
    pub(super) fn may_mix(&mut self, now: u64) {
        self.perhaps = now + FREED_WITHIN.0;
    }

    /// Time has passed.
    pub(super) fn ticked(&mut self, now: u64) {
        self.ends.retain(|end| now < end.at + FREED_WITHIN.0);
    }

    /// A container ends.
    pub(super) fn leaves(&mut self, key: &LaneKey) {
        let its = self.ends.iter_mut().filter(|end| end.key.as_ref() == Some(key));
        its.for_each(|end| end.key = None);
        self.ends.iter_mut().for_each(|end| end.heirs.retain(|heir| heir != key));
    }

    /// A container is promised more.
    pub(super) fn inherits(&mut self, key: LaneKey) {
        let left = self.ends.iter_mut().filter(|end| end.key.is_none());
        let left = left.filter(|end| !end.heirs.contains(&key));
        left.for_each(|end| end.heirs.push(key));
    }

    /// Takes in a look. `unseen` is what living processes of an account claim that NVML does not show.
    pub(super) fn looks(&mut self, look: Look, unseen: impl Fn(&LaneKey) -> u128) {
        let tells = look.now >= self.perhaps && self.ends.is_empty();
        self.least = if tells { look.least } else { self.least.min(look.least) };
        if look.now >= self.mixed {
            self.own.push((tells, look.least));
            let older = self.own.iter().rposition(|(tells, _)| *tells).unwrap_or(0);
            let older = self.own[..older].iter().rposition(|(tells, _)| *tells).unwrap_or(0);
            self.own.drain(..older);
        }
        let Some(before) = self.last.replace(look) else { return };
        for end in self.ends.iter_mut().filter(|it| it.at + FIGURE_AGE.0 <= before.asked) {
            let shown = look.most.max(before.most);
            // each of those that share it may have as much as the looks show
            let charged = end.key.iter().chain(&end.heirs).map(|key| shown + unseen(key));
            let left = if end.key.is_none() { shown } else { 0 };
            (end.least, end.most) = (0, end.most.min(charged.sum::<u128>() + left));
        }
    }

    /// What is in use at least and at most.
    pub(super) fn bounds(&self) -> (u128, u128) {
        let sum = |bytes: fn(&End) -> u128| self.ends.iter().map(bytes).sum::<u128>();
        let shown = self.last.map_or(0, |look| look.least);
        let own = self.own.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let least = sum(|end| end.least) + self.least;
        (least.max(shown), (sum(|end| end.most) + own).max(shown))
    }

    /// What ended containers have left, at least and at most.
    pub(super) fn left(&self) -> (u128, u128) {
        let left = self.ends.iter().filter(|end| end.key.is_none());
        let sure = left.clone().filter(|end| end.heirs.is_empty()).map(|end| end.least);
        (sure.sum(), left.map(|end| end.most).sum())
    }

    /// What an account is charged for ended processes, at least and at most.
    pub(super) fn charged(&self, key: &LaneKey) -> (u128, u128) {
        let its = self.ends.iter().filter(|end| end.key.as_ref() == Some(key));
        let may = |end: &&End| end.key.as_ref() == Some(key) || end.heirs.contains(key);
        let most = self.ends.iter().filter(may).map(|end| end.most).sum();
        (its.map(|end| end.least).sum(), most)
    }
}

impl Loans {
    /// Takes in `event` before the ledger: what processes that it ends have left.
    pub fn before(&mut self, seen: &Observer, ledger: &Ledger, event: &Event) {
        self.attaches = None;
        match event {
            Event::Tick => self.beside.values_mut().for_each(|it| it.ticked(seen.now)),
            Event::Gone { client } => self.ended(seen, ledger, *client),
            Event::Left { client } if !ledger.holds(*client) => self.ended(seen, ledger, *client),
            Event::Attach { held, .. } => {
                self.attaches = Some(held.iter().all(|bytes| bytes.0 == 0));
            }
            Event::Restore(record) => {
                self.classes.insert(record.container, record.class);
                let gpus = record.lanes.iter().map(|lane| lane.gpu);
                gpus.for_each(|gpu| self.beside.entry(gpu).or_default().mixes(seen.now));
            }
            _ => {}
        }
    }

    /// A process's account ends with its connection, if the engine says so.
    pub(super) fn disconnected(
        &mut self,
        seen: &Observer,
        ledger: &Ledger,
        client: ClientId,
        why: Cut,
    ) {
        match (why, self.attaches, ledger.home(client)) {
            (Cut::Broke(_), ..) if ledger.holds(client) => {}
            (Cut::Over, _, None) => self.beside.values_mut().for_each(|it| it.may_mix(seen.now)),
            (Cut::Over, Some(anew), Some(home)) => {
                let anew = anew && seen.config.sees_devices;
                for (key, gpu) in on_gpus(ledger, home).filter(|_| anew) {
                    let all = ledger.granted(home, key.1).filter(|(of, _)| *of == client);
                    let granted = all.map(|(_, bytes)| u128::from(bytes)).sum();
                    self.beside.entry(gpu).or_default().ends(key, seen.now, (granted, granted));
                }
            }
            _ => self.ended(seen, ledger, client),
        }
    }

    fn ended(&mut self, seen: &Observer, ledger: &Ledger, client: ClientId) {
        let Some(home) = ledger.home(client).filter(|_| seen.config.sees_devices) else {
            return;
        };
        for (key, gpu) in on_gpus(ledger, home) {
            let left = (ledger.charged(client, key.1), ledger.left_by(client, key.1));
            let beside = self.beside.entry(gpu).or_default();
            beside.ends(key, seen.now, left);
            beside.mixes(seen.now);
        }
    }

    /// A container ends, and leaves to its GPUs what its processes have left.
    pub(super) fn dismissed(&mut self, ledger: &Ledger, id: ContainerId) {
        for (key, gpu) in on_gpus(ledger, id) {
            self.beside.entry(gpu).or_default().leaves(&key);
        }
    }

    /// A container is promised more, and may be charged for what ended ones have left.
    pub(super) fn inherits(&mut self, record: &Record) {
        for (lane, promised) in (0..).map(Lane).zip(&record.lanes) {
            self.beside.entry(promised.gpu).or_default().inherits((record.container, lane));
        }
    }

    /// What an account is charged for ended processes, at least and at most.
    pub(super) fn unfreed(&self, ledger: &Ledger, key: &LaneKey) -> (u128, u128) {
        let gpu = ledger.account(key).and_then(|it| it.gpu);
        gpu.and_then(|gpu| self.beside.get(&gpu)).map_or((0, 0), |it| it.charged(key))
    }

    /// What ended containers have left on a GPU, at least and at most.
    pub(super) fn left(&self, gpu: GpuUuid) -> (u128, u128) {
        self.beside.get(&gpu).map_or((0, 0), Beside::left)
    }

    /// Whether that does not fit beside all promises: it was borrowed.
    pub(super) fn was_lent(&self, ledger: &Ledger, gpu: GpuUuid) -> bool {
        let total = ledger.gpus().find(|(of, _)| *of == gpu).map_or(0, |(_, total)| total);
        let caps: u128 = ledger.on(gpu).map(|(_, account)| u128::from(account.cap)).sum();
        caps + self.left(gpu).0 > total.into()
    }

    /// The memory of an account with that, wherever it is.
    pub(super) fn kept(&self, ledger: &Ledger, key: &LaneKey) -> (u128, u128) {
        let (kept, (least, most)) = (ledger.kept(key.0, key.1), self.unfreed(ledger, key));
        (kept + least, kept + most)
    }
}

/// A container's accounts on GPUs.
fn on_gpus(ledger: &Ledger, id: ContainerId) -> impl Iterator<Item = (LaneKey, GpuUuid)> {
    ledger.accounts_of(id).filter_map(|(key, account)| Some((*key, account.gpu?)))
}
