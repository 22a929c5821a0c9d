//! The daemon of the world: an inbox, one message at a time, and the pages.

use std::collections::{BTreeMap, VecDeque};

use gpuslice_engine::{
    Action, Cut, Engine, Event, LaneView, Process as Pid, Record, Token, Untracked,
};
use gpuslice_wire::ids::{ClientId, ContainerId, Lane, NvmlIndex};
use gpuslice_wire::limits::ACCOUNTS_MAX;
use gpuslice_wire::units::{Bytes, Instant};

use crate::tenant::Process;

use super::{Daemon, Happening, Letter, US, World, memory, time};

/// A process as the kernel names it.
pub(super) fn pid_of(who: usize) -> Pid {
    Pid { pid: who as u32 + 1, born: 1 }
}

impl World {
    pub(super) fn start_daemon(&mut self) {
        self.daemon = Daemon {
            engine: Engine::new(self.config),
            life: self.daemon.life + 1,
            up: true,
            busy: false,
            inbox: VecDeque::new(),
            decided: Vec::new(),
            asked: BTreeMap::new(),
            tokens: 0,
            deadline: u64::MAX,
        };
        self.checkers.restart(self.now);
        self.unfreed.clear(); // a restarted daemon does not know of it
        self.resume_all();
        self.clients.clear();
        self.pages.clear();
        for (n, (uuid, total)) in self.gpus.clone().into_iter().enumerate() {
            self.step(Event::GpuFound { uuid, index: NvmlIndex(n as u32), total });
        }
        for (gpu, policy) in self.policies.clone() {
            self.step(time::kept(gpu, policy));
        }
        for record in self.records.clone().into_values() {
            // the restored record is the one on disk
            let record = Record::decode(&record.encode()).expect("a record of our own");
            let container = record.container;
            self.step(Event::Restore(record.into()));
            self.count_again(container);
            self.suspend_again(container);
        }
        self.perform();
    }

    /// Restores the written grants of a container's living processes. Rarely they were lost.
    fn count_again(&mut self, container: ContainerId) {
        if self.rng.per_mille(100) {
            self.partly.insert(container);
        }
        let lost = self.partly.contains(&container) && self.rng.per_mille(500);
        let written = std::mem::take(&mut self.granted);
        for (who, granted) in written {
            let of_it = self.processes[who].container == container;
            if of_it && (lost || !self.processes[who].alive) {
                continue;
            }
            self.granted.insert(who, granted);
            let nothing = granted.iter().all(|&bytes| bytes == Bytes::ZERO);
            if !of_it || nothing {
                continue;
            }
            self.step(Event::RestoreProcess {
                token: Token(0),
                container,
                process: pid_of(who),
                granted,
            });
            let known = self.daemon.decided.iter().rev();
            let mut known = known.filter_map(|action| match action {
                Action::ProcessRestored { client, .. } => Some(*client),
                _ => None,
            });
            self.processes[who].account = known.next();
        }
        if !self.partly.contains(&container) {
            self.step(Event::Complete { container });
        }
        let untracked = self.untracked.get(&container).cloned().unwrap_or_default();
        if self.config.sees_devices && untracked.iter().any(|it| *it != Untracked::default()) {
            self.checkers.meets("memory beyond grants restored");
        }
        self.step(Event::RestoreUntracked { container, untracked });
    }

    /// Writes a process's grants to disk: an increase before the process is told, a decrease later.
    pub(super) fn write_down(&mut self, client: ClientId) {
        let granted = self.daemon.engine.granted_to(client);
        let who = self.clients.get(&client).copied();
        if let Some((who, granted)) = who.zip(granted) {
            self.granted.insert(who, granted);
        }
    }

    /// Steps the engine and the checkers.
    pub(super) fn step(&mut self, event: Event) {
        self.steps += 1;
        let from = self.daemon.decided.len();
        self.daemon.engine.step(Instant(self.now), event.clone(), &mut self.daemon.decided);
        if !cfg!(debug_assertions) {
            self.daemon.engine.check(); // otherwise it does so by itself
        }
        if self.mood.limits {
            self.checkers.suspend(self.suspended());
        }
        self.checkers.step(self.now, &event, &self.daemon.decided[from..]);
        if let Event::Looked { container, .. } | Event::Unattributed { container, .. } = event {
            let untracked = self.daemon.engine.untracked_of(container);
            self.checkers.untracked(container, &untracked);
            self.untracked.insert(container, untracked);
        }
        self.check_device();
        self.check_collectives();
        let next = self.daemon.engine.next_deadline();
        self.checkers.looks(next.map(|at| at.0));
    }

    pub(super) fn deliver(&mut self, letter: Letter) {
        if !self.daemon.up {
            return;
        }
        self.daemon.inbox.push_back(letter);
        if !self.daemon.busy {
            self.daemon.busy = true;
            self.after(0, Happening::Daemon(self.daemon.life));
        }
    }

    pub(super) fn take_letter(&mut self) {
        let Some(letter) = self.daemon.inbox.pop_front() else {
            self.daemon.busy = false;
            return;
        };
        if let Some(event) = self.open(letter) {
            self.step(event);
        }
        let slow = if self.rng.per_mille(50) { 200 * US } else { 20 * US };
        let delay = self.rng.below(slow);
        self.after(delay, Happening::Perform(self.daemon.life));
    }

    /// The event of a message that is read now.
    pub(super) fn open(&mut self, letter: Letter) -> Option<Event> {
        Some(match letter {
            Letter::Tick => Event::Tick,
            Letter::Admin(n) => Event::Admit { token: Token(n), ask: self.ask(n).into() },
            Letter::Dismiss(container) => {
                self.leave_memory(container);
                Event::Dismiss { token: Token(0), container }
            }
            Letter::Attach(who) => {
                let process = &self.processes[who];
                let mut held = [Bytes::ZERO; ACCOUNTS_MAX];
                for (at, purse) in process.purses.iter().enumerate() {
                    held[usize::from(process.lane_of(at).0)] = Bytes(purse.granted);
                }
                let container = process.container;
                Event::Attach {
                    token: self.token(who),
                    container,
                    process: Some(pid_of(who)),
                    held,
                }
            }
            Letter::Read(who, lane) => {
                let client = self.processes[who].client?;
                let claims = self.processes[who].says(lane, &mut self.rng);
                Event::Claims { client, lane: Lane(lane as u8), claims }
            }
            Letter::Left(client) => {
                if let Some(who) = self.clients.remove(&client)
                    && self.processes[who].alive
                {
                    (0..self.processes[who].work.len()).for_each(|lane| self.go_on(who, lane));
                }
                Event::Left { client }
            }
            Letter::Gone(_, client) => {
                self.clients.remove(&client);
                Event::Gone { client }
            }
            Letter::StopAnswer(container, lane, order, held) => {
                self.answer(container, lane, order, held)
            }
            letter => return self.open_memory(letter),
        })
    }

    /// The same for messages about memory.
    fn open_memory(&mut self, letter: Letter) -> Option<Event> {
        Some(match letter {
            Letter::Reserve(who, lane, need, wish) => Event::Reserve {
                client: self.processes[who].client?,
                token: self.token(who),
                lane,
                need: Bytes(need),
                wish: Bytes(wish),
            },
            Letter::Release(who, lane, bytes, recall) => {
                let (client, bytes) = (self.processes[who].client?, Bytes(bytes));
                match recall {
                    None => Event::Release { client, lane, bytes },
                    Some(recall) => Event::Yield { client, lane, recall, bytes },
                }
            }
            Letter::Measured(who, lane) => Event::Measured {
                client: self.processes[who].client?,
                lane,
                used: Bytes(self.driver_shows(who, lane)),
                requested: self.rng.per_mille(500),
            },
            Letter::Looking(container, lane) => Event::Looking { container, lane },
            Letter::Looked(container, lane) => self.look_at(container, lane),
            Letter::Unattributed(container, lane, used) => {
                Event::Unattributed { container, lane, used: Bytes(used) }
            }
            Letter::Device(gpu) => self.device_shows(gpu),
            Letter::Outside(gpu, used) => Event::Outside { gpu, used: Bytes(used) },
            Letter::Resize(container, lane, memory::WantedMemory(memory)) => {
                Event::Resize { token: Token(0), container, lane, memory }
            }
            Letter::Policy(gpu, policy) => time::policy(gpu, policy),
            Letter::Retune(container, wish) => wish.event(container),
            letter => return self.open_limits(letter),
        })
    }

    pub(super) fn token(&mut self, who: usize) -> Token {
        self.daemon.tokens += 1;
        self.daemon.asked.insert(self.daemon.tokens, who);
        Token(self.daemon.tokens)
    }

    pub(super) fn perform(&mut self) {
        for action in std::mem::take(&mut self.daemon.decided) {
            self.act(action);
        }
        if let Some(due) = self.daemon.engine.next_deadline()
            && (due.0 < self.daemon.deadline || self.daemon.deadline <= self.now)
        {
            self.daemon.deadline = due.0;
            let late = self.rng.below(100 * US);
            let delay = due.0.saturating_sub(self.now) + late;
            self.after(delay, Happening::Letter(self.daemon.life, Letter::Tick));
        }
        self.daemon.busy = !self.daemon.inbox.is_empty();
        if self.daemon.busy {
            self.after(0, Happening::Daemon(self.daemon.life));
        }
    }

    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::Admitted { record, .. } => {
                self.records.insert(record.container, (*record).clone());
                if self.mood.fate {
                    let many = self.rng.range(1, if self.mood.few { 1 } else { 3 });
                    (0..many).for_each(|_| self.spawn(record.container));
                }
            }
            Action::PolicySet { policy, was, .. } => {
                self.policies.extend(was.into_iter().map(|(gpu, _)| (gpu, policy)));
            }
            Action::Resized { record, .. } | Action::Retuned { record, .. } => {
                self.records.insert(record.container, *record);
            }
            Action::Dismissed { container, .. } => self.dismissed(container),
            Action::Attached { token, client, .. } => self.attached(token, client),
            Action::Rejected { token, .. } => {
                let who = self.daemon.asked.remove(&token.0);
                who.into_iter().for_each(|who| self.processes[who].alive = false);
            }
            Action::Reserved { client, token, lane, bytes } => {
                self.daemon.asked.remove(&token.0);
                self.write_down(client);
                if let Some(&who) = self.clients.get(&client) {
                    let at = self.processes[who].account_of(lane);
                    self.processes[who].purses[at].credit(bytes.0, &mut self.rng);
                }
            }
            Action::Refused { client, token, lane, .. } => {
                self.daemon.asked.remove(&token.0);
                if let Some(&who) = self.clients.get(&client) {
                    let process = &mut self.processes[who];
                    let at = process.account_of(lane);
                    process.purses[at].asks = None;
                    if let Some(work) = process.work.get_mut(at) {
                        work.claims.denied += 1;
                    }
                }
            }
            Action::Disconnect { why: Cut::Over, .. } => {}
            Action::Disconnect { client, .. } => self.disconnect(client),
            Action::SetLane { container, lane, view } => self.set_page(container, lane, view),
            Action::ReadClaims { client, lane } => self.reread(client, lane),
            Action::Stop { container, lane, order } => self.order_stop(container, lane, order),
            Action::Resume { container, lane } => self.order_resume(container, lane),
            action @ (Action::Relimited { .. }
            | Action::Wanted { .. }
            | Action::MoveMemory { .. }
            | Action::SuspensionSettled { .. }) => self.act_on_limits(action),
            Action::NoRoomToMove { .. }
            | Action::Denied { .. }
            | Action::ProcessRestored { .. }
            | Action::Restored { .. }
            | Action::NotRestored { .. }
            | Action::Recorded { .. }
            | Action::Late { .. } => {}
        }
    }

    fn dismissed(&mut self, container: ContainerId) {
        self.records.remove(&container);
        self.untracked.remove(&container);
        self.partly.remove(&container);
        self.forget_suspension(&container);
        self.pages.retain(|(id, _), _| *id != container);
        let its = |process: &&mut Process| process.container == container;
        let dead = self.processes.iter_mut().filter(its);
        dead.for_each(|process| process.alive = false);
    }

    pub(super) fn attached(&mut self, token: Token, client: ClientId) {
        let Some(who) = self.daemon.asked.remove(&token.0) else {
            return;
        };
        self.clients.insert(client, who);
        self.write_down(client);
        let process = &mut self.processes[who];
        (process.client, process.account) = (Some(client), Some(client));
        for work in &mut process.work {
            let denied = work.claims.denied;
            work.claims = gpuslice_engine::Claims { denied, ..Default::default() };
        }
        if !process.alive {
            self.post(who, Letter::Gone(who, client));
            return;
        }
        // a launch that the daemon did not know of cannot have changed turns
        for who in [Some(who), self.processes[who].sibling].into_iter().flatten() {
            let since = self.processes[who].collective.flatten();
            if since.is_some() {
                self.processes[who].collective = Some(Some(self.now));
            }
        }
        for lane in 0..self.processes[who].work.len() {
            self.after(0, Happening::Pump(who, lane));
        }
    }

    pub(super) fn disconnect(&mut self, client: ClientId) {
        if let Some(who) = self.clients.remove(&client) {
            self.crash(who);
            self.processes[who].client = None;
        }
    }

    pub(super) fn set_page(&mut self, container: ContainerId, lane: Lane, view: LaneView) {
        let before = self.pages.insert((container, usize::from(lane.0)), view);
        if before.map_or(0, |before| before.recall) != view.recall {
            self.recalled(container, lane, &view);
        }
        if lane == Lane::HOST {
            return; // no process launches there
        }
        let lane = usize::from(lane.0);
        let same = before.is_some_and(|b| (b.mode, b.turn) == (view.mode, view.turn));
        if same && before.is_some_and(|b| b.turn_end == view.turn_end) {
            return;
        }
        for who in 0..self.processes.len() {
            let process = &self.processes[who];
            if process.alive && process.container == container && process.client.is_some() {
                let delay = self.rng.below(200 * US);
                self.after(delay, Happening::Pump(who, lane));
            }
        }
    }

    pub(super) fn reread(&mut self, client: ClientId, lane: Lane) {
        if let Some(who) = self.clients.get(&client) {
            self.daemon.inbox.push_front(Letter::Read(*who, usize::from(lane.0)));
        }
    }
}
