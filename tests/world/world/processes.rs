//! The processes of the world: launches, kernels, memory, crashes.

use gpuslice_engine::Mode;
use gpuslice_wire::ids::{ContainerId, Lane};

use super::{Happening, Letter, MS, US, World};
use crate::tenant::{Honesty, Kernels, Process};

/// A collective that was begun is over after this long, unless its container yields: longer than any
/// that overran and had to wait until the others had as much.
const COLLECTIVE: u64 = 60_000 * MS;
/// The same for two processes on one GPU: they overrun after 2 s.
const DEPENDENCY: u64 = 30_000 * MS;
/// No life of the daemon: a process that was attached before and asks again.
const NEVER_YET: u32 = u32::MAX;

impl World {
    pub(super) fn post(&mut self, who: usize, letter: Letter) {
        let at = (self.now + self.rng.below(200 * US)).max(self.processes[who].sent);
        self.processes[who].sent = at;
        self.after(at.saturating_sub(self.now), Happening::Letter(self.daemon.life, letter));
    }

    /// A process of `container` starts.
    pub fn spawn(&mut self, container: ContainerId) {
        let Some(record) = self.records.get(&container) else {
            return;
        };
        let mut process = Process::new(container, record.lanes.len(), &mut self.rng);
        if !self.mood.trouble {
            process.honesty = Honesty::Honest;
        }
        if record.lanes.len() == 1 && self.rng.per_mille(100) {
            self.add_launch_dependency(process);
            return;
        }
        // where there are few, whole containers do
        let aims = match self.mood.few {
            true => container.as_str().ends_with(['0', '2', '4', '6', '8']),
            false => self.rng.per_mille(100),
        };
        if self.mood.trouble && aims {
            process.aims_at_the_timer(&mut self.rng);
        }
        self.add(process);
    }

    /// Two processes, of which neither's kernel ends before the other has launched, too; the number of the first.
    fn add_launch_dependency(&mut self, mut process: Process) -> usize {
        (process.honesty, process.collective) = (Honesty::Honest, Some(None));
        let first = self.processes.len();
        for sibling in [first + 1, first] {
            let mut process = process.clone();
            (process.busy, process.sibling) = (true, Some(sibling));
            self.add(process);
        }
        first
    }

    /// A process starts whose kernels wait for each other, and its sibling where it has one GPU. Returns its number.
    pub fn begins_collectives(&mut self, process: Process) -> usize {
        if process.work.len() == 1 {
            return self.add_launch_dependency(process);
        }
        self.add(Process { honesty: Honesty::Honest, busy: true, ..process });
        self.processes.len() - 1
    }

    /// A process starts.
    pub fn add(&mut self, process: Process) {
        self.processes.push(process);
        let delay = self.rng.below(MS);
        self.after(delay, Happening::Connect(self.processes.len() - 1));
    }

    /// A process ends, and one like it begins after `gap`.
    fn return_after(&mut self, who: usize, gap: u64) {
        let next = self.processes[who].another();
        self.crash(who);
        self.processes.push(next);
        self.after(gap, Happening::Connect(self.processes.len() - 1));
    }

    /// Sets a process's honesty from now on.
    pub fn becomes(&mut self, who: usize, honesty: Honesty) {
        self.processes[who].honesty = honesty;
    }

    /// A process does nothing for `pause` ns.
    pub fn stalls(&mut self, who: usize, pause: u64) {
        self.processes[who].stalled = self.now + pause;
    }

    /// A process launches kernels of `kernel` ns from now on, and is not runnable for `pause` ns after
    /// each.
    pub fn pulses(&mut self, who: usize, kernel: u64, pause: u64) {
        self.launches(who, Kernels::Exactly(kernel));
        let process = &mut self.processes[who];
        (process.busy, process.pause) = (false, Some(pause));
    }

    /// A process launches kernels like these from now on.
    pub fn launches(&mut self, who: usize, kernels: Kernels) {
        self.processes[who].kernels = kernels;
    }

    pub(super) fn connect(&mut self, who: usize) {
        let process = &self.processes[who];
        let (asked, life) = (process.asked, self.daemon.life);
        if !process.alive || process.client.is_some() || asked == life {
            return;
        }
        if !self.daemon.up || process.stalled > self.now {
            let stalled = process.stalled.saturating_sub(self.now);
            let delay = self.rng.range(10 * MS, 500 * MS).max(stalled);
            return self.after(delay, Happening::Connect(who));
        }
        self.processes[who].asked = life;
        self.post(who, Letter::Attach(who));
        if asked == 0 {
            // Where memory is what matters, fewer launches show more of it. Of two that wait for each other, both
            // launch.
            let pair = self.processes[who].sibling.is_some();
            let launches = pair || !self.mood.limits || self.rng.per_mille(350);
            for lane in (0..self.processes[who].work.len()).filter(|_| launches) {
                self.after(0, Happening::Burst(who, lane));
            }
            if self.mood.fate {
                self.after(MS, Happening::Memory(who));
            }
        }
    }

    pub(super) fn kill(&mut self, who: usize) {
        self.processes[who].alive = false;
        self.processes[who].collective = None;
        for lane in 0..self.processes[who].work.len() {
            self.processes[who].work[lane].until = None;
        }
    }

    /// A process ends.
    pub fn crash(&mut self, who: usize) {
        if !self.processes[who].alive {
            return;
        }
        self.kill(who);
        self.free_later(who);
        if let Some(client) = self.processes[who].account {
            self.post(who, Letter::Gone(who, client));
        }
        if let Some(sibling) = self.processes[who].sibling {
            self.crash(sibling); // the kernel that depends on it would never end
        }
    }

    /// A process loses its connection and lives; it notices some time later.
    pub(super) fn lose(&mut self, who: usize) {
        let process = &mut self.processes[who];
        let Some(client) = process.client.take() else {
            return;
        };
        process.asked = NEVER_YET;
        process.purses.iter_mut().for_each(|it| it.asks = None);
        for work in &mut process.work {
            (work.entering, work.followed) = (false, false);
        }
        self.post(who, Letter::Left(client));
        let delay = self.rng.range(MS, 300 * MS);
        self.after(delay, Happening::Connect(who));
    }

    /// Whether a process can act; if it is stalled, it does so when it wakes.
    pub(super) fn acts(&mut self, who: usize, again: Happening) -> bool {
        let process = &self.processes[who];
        if !process.alive || process.client.is_none() {
            return false;
        }
        if process.stalled > self.now {
            let delay = process.stalled - self.now;
            self.after(delay, again);
            return false;
        }
        true
    }

    pub(super) fn ring(&mut self, who: usize, lane: usize) {
        self.post(who, Letter::Read(who, lane));
    }

    pub(super) fn pump(&mut self, who: usize, lane: usize) {
        if !self.acts(who, Happening::Pump(who, lane)) {
            return;
        }
        let Some(view) = self.pages.get(&(self.processes[who].container, lane)).copied() else {
            return;
        };
        let now = self.now;
        let process = &mut self.processes[who];
        let work = &mut process.work[lane];
        let owes = work.claims.active != work.claims.drained && view.turn != work.claims.active;
        if work.until.is_none() && !work.entering && owes {
            work.calm();
            self.ring(who, lane);
        }
        let process = &mut self.processes[who];
        let work = &mut process.work[lane];
        if work.until.is_some() || work.entering {
            return;
        }
        if work.todo == 0 {
            let idle = u64::from(view.idle_us) * US;
            let launches = work.claims.launches;
            if work.claims.runnable {
                self.after(idle, Happening::Rest(who, lane, launches));
            }
            return;
        }
        if !work.claims.runnable {
            work.claims.runnable = true;
            self.ring(who, lane);
        }
        let frozen = self.is_frozen(&self.processes[who].container);
        let process = &mut self.processes[who];
        if frozen || process.honesty == Honesty::AlwaysWants || !process.admitted(lane, &view, now)
        {
            return;
        }
        if view.mode == Mode::Open {
            process.work[lane].takes(view.turn, now);
            return self.launch(who, lane, false);
        }
        process.work[lane].entering = true;
        let delay = self.rng.below(20 * US);
        self.after(delay, Happening::Mark(who, lane, view.turn));
    }

    pub(super) fn mark(&mut self, who: usize, lane: usize, turn: u32) {
        if !self.acts(who, Happening::Mark(who, lane, turn)) {
            return;
        }
        self.processes[who].work[lane].takes(turn, self.now);
        let delay = self.rng.below(20 * US);
        self.after(delay, Happening::Launch(who, lane, turn));
    }

    pub(super) fn launch_in(&mut self, who: usize, lane: usize, turn: u32) {
        let page = self.pages.get(&(self.processes[who].container, lane)).copied();
        let still = page.is_some_and(|v| v.turn == turn && v.mode == Mode::Turns);
        let work = &mut self.processes[who].work[lane];
        work.entering = false;
        let live = self.processes[who].alive && self.processes[who].client.is_some();
        if !live {
            return;
        }
        if self.is_frozen(&self.processes[who].container) {
            return;
        }
        if still && self.processes[who].stalled <= self.now {
            self.launch(who, lane, true);
        } else {
            let delay = self.rng.below(20 * US);
            self.after(delay, Happening::Pump(who, lane));
        }
    }

    pub(super) fn launch(&mut self, who: usize, lane: usize, by_turn: bool) {
        let length = self.processes[who].kernels.draw(&mut self.rng);
        let process = &mut self.processes[who];
        let work = &mut process.work[lane];
        if process.honesty != Honesty::Hollow {
            process.ran += length;
            work.claims.launches += 1;
        }
        (work.until, work.followed) = (Some(u64::MAX), true);
        if let Some(since) = &mut process.collective {
            since.get_or_insert(self.now);
            self.begun.insert(who);
        }
        self.end_together(who, lane, length);
        if by_turn && self.processes[who].honesty == Honesty::Honest {
            self.check_alone(who, lane);
        }
    }

    /// If this was the last part of a collective, it ends after `length`.
    fn end_together(&mut self, who: usize, lane: usize, length: u64) {
        let process = &self.processes[who];
        let lanes = match process.collective {
            None => lane..lane + 1,
            Some(_) => 0..process.work.len(),
        };
        let both = process.sibling.into_iter().chain([who]);
        let parts: Vec<(usize, usize)> =
            both.flat_map(|who| lanes.clone().map(move |lane| (who, lane))).collect();
        // a part of the collective before has its end already
        let waits = |&(who, lane): &(usize, usize)| {
            let work = &self.processes[who].work[lane];
            work.until == Some(u64::MAX) && work.left.is_none()
        };
        if !parts.iter().all(waits) {
            return;
        }
        self.meet_collective(who);
        for (who, lane) in parts {
            let process = &mut self.processes[who];
            process.collective = process.collective.map(|_| None);
            let work = &mut process.work[lane];
            (work.until, work.left) = (Some(self.now + length), None);
            if work.stopped {
                work.pause(self.now);
            } else {
                self.after(length, Happening::Done(who, lane));
            }
        }
    }

    /// A process that launched a part of a collective can launch the rest in time, or had no time to do so.
    pub(super) fn check_collectives(&mut self) {
        self.begun.retain(|who| self.processes[*who].collective.flatten().is_some());
        for who in self.begun.clone() {
            let process = &self.processes[who];
            let since = process.collective.flatten().unwrap_or(self.now);
            let sibling = process.sibling.map(|sibling| &self.processes[sibling]);
            let apart = process.client.is_none() || sibling.is_some_and(|it| it.client.is_none());
            let stalled = sibling.map_or(0, |it| it.stalled).max(process.stalled);
            let yields = self.checkers.yields(process.container);
            if apart || yields || stalled > self.now || self.is_frozen(&process.container) {
                self.processes[who].excused = self.now;
                continue;
            }
            let patience = sibling.map_or(COLLECTIVE, |_| DEPENDENCY);
            let since = since.max(process.excused).max(stalled);
            if self.now > since + patience {
                let lasts = self.now - since;
                let who = process.container;
                self.checkers.object(&format!("a collective of {who} does not end for {lasts} ns"));
            }
        }
    }

    /// Counts a collective of a container without a cap that ends.
    fn meet_collective(&mut self, who: usize) {
        let process = &self.processes[who];
        let sibling = process.sibling.map(|sibling| &self.processes[sibling]);
        let both = || [Some(process), sibling].into_iter().flatten();
        let Some(since) = both().filter_map(|it| it.collective.flatten()).min() else {
            return;
        };
        let overran = self.now.saturating_sub(since) >= self.config.drain_max.0;
        if self.checkers.capped(process.container) {
            return;
        }
        self.checkers.meets(match (sibling.is_some(), overran) {
            (true, true) => "pair overran",
            (true, false) => "pair",
            (false, true) => "collective overran",
            (false, false) => "collective",
        });
    }

    /// The main check: a container launches in its turn alone, also after all untracked work is over.
    /// Excepted are processes that claim falsely to have drained, overrun containers, and work launched
    /// under a dead daemon.
    pub(super) fn check_alone(&self, who: usize, lane: usize) {
        let me = self.processes[who].container;
        let Some(gpu) = self.records.get(&me).map(|record| record.lanes[lane].gpu) else {
            return;
        };
        let honest = |p: &&Process| {
            p.alive && p.honesty == Honesty::Honest && !p.broke && p.client.is_some()
        };
        for other in self.processes.iter().filter(honest).filter(|p| p.container != me) {
            for (at, work) in other.work.iter().enumerate() {
                let runs = work.until.is_some_and(|until| until > self.now);
                if !runs || !work.followed || work.stopped {
                    continue;
                }
                let record = self.records.get(&other.container);
                let here = record.is_some_and(|record| record.lanes[at].gpu == gpu);
                if here && !self.checkers.overran(other.container, Lane(at as u8)) {
                    self.checkers.object(&format!(
                        "{me} launches in its turn while {} has a kernel in flight, {work:?}",
                        other.container
                    ));
                }
            }
        }
    }

    pub(super) fn done(&mut self, who: usize, lane: usize) {
        let busy = self.processes[who].busy;
        let work = &mut self.processes[who].work[lane];
        let Some(until) = work.until.filter(|until| *until <= self.now) else {
            return;
        };
        (work.until, work.ended) = (None, until);
        if !busy {
            work.todo = work.todo.saturating_sub(1);
            if work.todo == 0 {
                let gap = self.rng.magnitude(10 * US, 200 * MS);
                let gap = self.processes[who].pause.unwrap_or(gap);
                if self.processes[who].returns {
                    return self.return_after(who, gap);
                }
                self.after(gap, Happening::Burst(who, lane));
            }
        }
        self.pump(who, lane);
    }

    pub(super) fn burst(&mut self, who: usize, lane: usize) {
        if !self.processes[who].alive {
            return;
        }
        let todo = match self.processes[who].pause {
            Some(_) => 1,
            None => self.rng.magnitude(1, 200),
        };
        let lanes = match self.processes[who].collective {
            None => lane..lane + 1,
            Some(_) if lane > 0 => return,
            Some(_) => 0..self.processes[who].work.len(),
        };
        for lane in lanes {
            self.processes[who].work[lane].todo = todo;
            self.pump(who, lane);
        }
    }

    pub(super) fn rest(&mut self, who: usize, lane: usize, launches: u64) {
        if !self.acts(who, Happening::Rest(who, lane, launches)) {
            return;
        }
        let work = &mut self.processes[who].work[lane];
        let idle = work.todo == 0 && work.until.is_none() && !work.entering;
        if idle && work.claims.runnable && work.claims.launches == launches {
            work.claims.runnable = false;
            work.calm();
            self.ring(who, lane);
        }
    }
}
