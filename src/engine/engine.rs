//! The state machine: one event in, actions out.
//!
//! A step books the time that passed on the GPUs concerned, takes the event in, lets these GPUs
//! decide whose turn it is, and then shows containers what changed: first to those who may not
//! launch any more, then to those who may, so that no instant has two.

use alloc::vec::Vec;
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane, NvmlIndex};
use gpuslice_wire::limits::{CONTAINERS_MAX, GPUS_MAX, NAME_BYTES_MAX};
use gpuslice_wire::units::{Bytes, Instant};

use crate::action::{Action, Actions, Cut, LaneView, Mode};
use crate::admission::{Room, admit, beginning, readmit};
use crate::config::{Charged, Config};
use crate::event::{Ask, Claims, Event, Token};
use crate::ledger::Account;
use crate::lifecycle::{ClientLane, Clients, Container, Containers, Seat, Slice, Stage};
use crate::record::Record;
use crate::refusal::Refusal;
use crate::sched::entity::{Entity, Report};
use crate::sched::{Note, Turns};

/// A GPU of the node.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) uuid: GpuUuid,
    pub(crate) index: NvmlIndex,
    pub(crate) total: Bytes,
    pub(crate) turns: Turns,
    /// When its turns need a look although nothing happens; kept, because every step asks.
    pub(crate) due: Option<Instant>,
}

/// All that is known and decided about a node's GPUs.
#[derive(Debug)]
pub struct Engine {
    pub(crate) config: Config,
    pub(crate) now: Instant,
    pub(crate) charged: Charged,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) containers: Containers,
    pub(crate) clients: Clients,
    /// When the first restored container's growth need not wait any more.
    pub(crate) grace: Option<Instant>,
    notes: Vec<Note>,
}

/// GPUs whose turns an event may change: bit `i` is GPU `i`.
type Touched = u32;
const ALL: Touched = Touched::MAX;
const _: () = assert!(GPUS_MAX <= Touched::BITS as usize);

impl Engine {
    /// An engine that knows no GPU and no container.
    #[must_use]
    pub fn new(config: Config) -> Engine {
        Engine {
            config,
            now: Instant(0),
            charged: Charged::default(),
            gpus: Vec::new(),
            containers: Containers::default(),
            clients: Clients::default(),
            grace: None,
            notes: Vec::new(),
        }
    }

    /// Takes in what happened at `now` and appends what is to be done. An instant earlier than
    /// a former one counts as that one.
    pub fn step(&mut self, now: Instant, event: Event, actions: &mut Actions) {
        self.charged = self.charged.plus(now.since(self.now));
        self.now = self.now.max(now);
        let growth = matches!(event, Event::Tick | Event::Reserve { .. });
        let grace_over = growth && self.end_grace(actions);
        let touched = match grace_over {
            true => ALL,
            false => self.concerned(&event) | self.overdue(),
        };
        self.pass_time(touched);
        match event {
            Event::GpuFound { uuid, index, total } => self.found(uuid, index, total),
            Event::Admit { token, ask } => self.admit(token, &ask, actions),
            Event::Restore(record) => self.restore(record, actions),
            Event::Dismiss { token, container } => self.dismiss(token, container, actions),
            Event::Attach {
                token,
                container,
                held,
            } => {
                self.attach(token, container, &held, actions);
            }
            Event::Reserve {
                client,
                token,
                lane,
                need,
                wish,
            } => {
                self.reserve(client, token, lane, need, wish, actions);
            }
            Event::Release {
                client,
                lane,
                bytes,
            } => self.release(client, lane, bytes, actions),
            Event::Yield {
                client,
                lane,
                bytes,
                ..
            } => self.release(client, lane, bytes, actions),
            Event::Measured { .. } | Event::Stray { .. } => {}
            Event::Resize { token, .. } => actions.push(Action::Denied {
                token,
                why: Refusal::NoGpu,
            }),
            Event::Gone { client } => self.forget(client),
            Event::Claims {
                client,
                lane,
                claims,
            } => self.claims(client, lane, claims),
            Event::Tick => {}
        }
        self.turn_over(touched, actions);
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// When to step with [`Event::Tick`] if nothing else happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let due = self.gpus.iter().filter_map(|gpu| gpu.due);
        due.chain(self.grace).min()
    }

    /// Books the time up to now.
    fn pass_time(&mut self, touched: Touched) {
        let (now, charged) = (self.now, self.charged);
        self.each_gpu(touched, |gpu| gpu.turns.advance(now, charged));
    }

    fn each_gpu(&mut self, touched: Touched, f: impl FnMut(&mut Gpu)) {
        let gpus = self.gpus.iter_mut().enumerate();
        gpus.filter(|(at, _)| touched & (1 << at) != 0)
            .map(|(_, gpu)| gpu)
            .for_each(f);
    }

    /// GPUs whose turns `event` may change.
    fn concerned(&self, event: &Event) -> Touched {
        let gpus_of = |client: &ClientId| {
            let seat = self.clients.get(*client).map(|client| client.seat);
            seat.and_then(|seat| self.containers.get(seat))
                .map_or(&[][..], |c| &c.slices)
        };
        match event {
            Event::Claims { client, lane, .. } => gpus_of(client)
                .get(usize::from(lane.0))
                .map_or(0, |slice| 1 << slice.gpu),
            Event::Reserve { client, .. }
            | Event::Release { client, .. }
            | Event::Gone { client } => gpus_of(client)
                .iter()
                .fold(0, |all, slice| all | 1 << slice.gpu),
            _ => ALL,
        }
    }

    /// GPUs that should have been looked at by now.
    fn overdue(&self) -> Touched {
        let due = |gpu: &Gpu| gpu.due.is_some_and(|due| due <= self.now);
        let bits = self.gpus.iter().enumerate().filter(|(_, gpu)| due(gpu));
        bits.fold(0, |all, (at, _)| all | 1 << at)
    }

    fn found(&mut self, uuid: GpuUuid, index: NvmlIndex, total: Bytes) {
        if let Some(gpu) = self.gpus.iter_mut().find(|gpu| gpu.uuid == uuid) {
            gpu.index = index;
        } else if self.gpus.len() < GPUS_MAX {
            let turns = Turns::new(self.config, self.now, self.charged);
            self.gpus.push(Gpu {
                due: None,
                uuid,
                index,
                total,
                turns,
            });
        }
    }

    /// What admission has to know of the GPUs.
    pub(crate) fn rooms(&self) -> Vec<Room> {
        let mut rooms: Vec<Room> = self
            .gpus
            .iter()
            .map(|gpu| Room {
                uuid: gpu.uuid,
                index: gpu.index,
                total: gpu.total,
                promised: Bytes::ZERO,
                shares: 0,
            })
            .collect();
        for (_, container) in self.containers.iter() {
            for slice in &container.slices {
                let room = &mut rooms[slice.gpu];
                room.promised = room.promised.saturating_add(slice.account.cap());
                room.shares += container.record.share.map_or(0, |share| share.get());
            }
        }
        rooms
    }

    fn admit(&mut self, token: Token, ask: &Ask, actions: &mut Actions) {
        let granted = self
            .vacancy(ask.container)
            .and_then(|()| admit(&self.rooms(), ask, self.config.oversubscribe));
        match granted {
            Ok(record) => {
                actions.push(Action::Admitted {
                    token,
                    record: record.clone(),
                });
                self.seat(record, Stage::Settled);
            }
            Err(why) => actions.push(Action::Denied { token, why }),
        }
    }

    fn restore(&mut self, record: Record, actions: &mut Actions) {
        let (container, lanes) = (record.container, record.lanes.len() as u8);
        match self
            .vacancy(container)
            .and_then(|()| readmit(&self.rooms(), &record))
        {
            Ok(()) => {
                actions.push(Action::Restored { container, lanes });
                let until = self.now.plus(self.config.restore_grace);
                self.seat(record, Stage::Returning { until });
            }
            Err(why) => actions.push(Action::NotRestored { container, why }),
        }
    }

    /// Whether there is a place for one more container of this id.
    fn vacancy(&self, id: ContainerId) -> Result<(), Refusal> {
        if self.containers.find(id).is_some() {
            Err(Refusal::Exists(beginning(id, NAME_BYTES_MAX)))
        } else if self.containers.count() >= CONTAINERS_MAX {
            Err(Refusal::TooManyContainers)
        } else {
            Ok(())
        }
    }

    fn seat(&mut self, record: Record, stage: Stage) {
        let slices: Vec<Slice> = record
            .lanes
            .iter()
            .filter_map(|lane| {
                let gpu = self.gpus.iter().position(|gpu| gpu.uuid == lane.gpu)?;
                Some(Slice::new(gpu, Account::new(lane.cap)))
            })
            .collect();
        if let Stage::Returning { until } = stage {
            self.grace = Some(self.grace.map_or(until, |other| other.min(until)));
        }
        let on: Vec<usize> = slices.iter().map(|slice| slice.gpu).collect();
        let container = Container {
            record: record.clone(),
            stage,
            clients: Vec::new(),
            slices,
            waiting: Vec::new(),
        };
        let Some(seat) = self.containers.seat(container) else {
            return;
        };
        for (lane, gpu) in on.into_iter().enumerate() {
            self.gpus[gpu].turns.enter(seat, Lane(lane as u8), &record);
        }
    }

    fn dismiss(&mut self, token: Token, id: ContainerId, actions: &mut Actions) {
        let seat = self.containers.find(id);
        if let Some(seat) = seat {
            self.shut(seat, actions);
            let clients = self.containers.get(seat).map(|c| c.clients.clone());
            for client in clients.unwrap_or_default() {
                self.forget(client);
                actions.push(Action::Disconnect {
                    client,
                    why: Cut::Dismissed,
                });
            }
            self.containers.remove(seat);
            self.each_gpu(ALL, |gpu| gpu.turns.leave(seat));
        }
        actions.push(Action::Dismissed {
            token,
            container: id,
            known: seat.is_some(),
        });
    }

    /// Lets a container that is about to go launch nothing more.
    fn shut(&mut self, seat: Seat, actions: &mut Actions) {
        let Some(it) = self.containers.get_mut(seat) else {
            return;
        };
        let container = it.record.container;
        for (at, slice) in it.slices.iter_mut().enumerate() {
            if let Some(view) = slice.shown.filter(may_launch) {
                let turn = view.turn.wrapping_add(view.turn % 2);
                let view = LaneView {
                    mode: Mode::Turns,
                    turn,
                    ..view
                };
                slice.shown = Some(view);
                actions.push(Action::SetLane {
                    container,
                    lane: Lane(at as u8),
                    view,
                });
            }
        }
    }

    fn claims(&mut self, client: ClientId, lane: Lane, claims: Claims) {
        let Some(it) = self.clients.get_mut(client) else {
            return;
        };
        let (seat, at) = (it.seat, usize::from(lane.0));
        let Some(container) = self.containers.get_mut(seat) else {
            return;
        };
        let (Some(mine), Some(slice)) = (it.lanes.get_mut(at), container.slices.get_mut(at)) else {
            return;
        };
        let turns = &self.gpus[slice.gpu].turns;
        mine.read_at = turns.find(seat).map_or(0, |entity| entity.turn);
        // counters only grow, whatever a page says
        mine.claims = Claims {
            launches: claims.launches.max(mine.claims.launches),
            denied: claims.denied.max(mine.claims.denied),
            ..claims
        };
        let used = self.used(seat, lane);
        if let Some(slice) = self
            .containers
            .get_mut(seat)
            .and_then(|c| c.slices.get_mut(at))
        {
            slice.peak = slice.peak.max(used);
        }
        self.report(seat, lane);
    }

    /// Held on a lane, by what its processes say and were granted.
    pub(crate) fn used(&self, seat: Seat, lane: Lane) -> Bytes {
        let lanes = self.lanes_of(seat, lane);
        lanes.fold(Bytes::ZERO, |sum, lane| sum.saturating_add(lane.held()))
    }

    /// What every process of a container has and says on one lane.
    pub(crate) fn lanes_of(&self, seat: Seat, lane: Lane) -> impl Iterator<Item = &ClientLane> {
        let clients = self
            .containers
            .get(seat)
            .map_or(&[][..], |c| c.clients.as_slice());
        let clients = clients.iter().filter_map(|&id| self.clients.get(id));
        clients.filter_map(move |client| client.lanes.get(usize::from(lane.0)))
    }

    /// Tells a GPU what a container's processes say together.
    pub(crate) fn report(&mut self, seat: Seat, lane: Lane) {
        let slices = self.containers.get(seat).map(|c| c.slices.as_slice());
        let Some(slice) = slices.and_then(|slices| slices.get(usize::from(lane.0))) else {
            return;
        };
        let gpu = slice.gpu;
        let turn = self.gpus[gpu]
            .turns
            .find(seat)
            .map_or(0, |entity| entity.turn);
        let mut said = Report {
            attached: false,
            wants: false,
            quiet: true,
        };
        for lane in self.lanes_of(seat, lane) {
            said.attached = true;
            said.wants |= lane.claims.want;
            said.quiet &= lane.quiet(turn);
        }
        self.gpus[gpu].turns.report(seat, said);
    }

    /// Lets the GPUs decide and shows what changed.
    fn turn_over(&mut self, touched: Touched, actions: &mut Actions) {
        let mut notes = core::mem::take(&mut self.notes);
        for at in 0..self.gpus.len() {
            if touched & (1 << at) == 0 {
                continue;
            }
            self.gpus[at].turns.decide(&mut notes);
            // who is late is said before others profit; who is closed is read after it was shown
            let late = |note: &&Note| matches!(note, Note::Late(..));
            notes
                .iter()
                .filter(late)
                .for_each(|note| self.tell(at, *note, actions));
            self.show(at, actions);
            self.gpus[at].due = self.gpus[at].turns.deadline();
            notes.retain(|note| !late(&note));
            notes
                .drain(..)
                .for_each(|note| self.tell(at, note, actions));
        }
        self.notes = notes;
    }

    fn tell(&self, gpu: usize, note: Note, actions: &mut Actions) {
        let (Note::Closed(seat) | Note::Late(seat, ..)) = note;
        let entity = self.gpus[gpu].turns.find(seat);
        let Some((entity, it)) = entity.zip(self.containers.get(seat)) else {
            return;
        };
        let (container, lane) = (it.record.container, entity.lane);
        actions.push(match note {
            Note::Closed(_) => Action::ReadClaims { container, lane },
            Note::Late(_, stage, after) => Action::Overrun {
                container,
                lane,
                stage,
                after,
            },
        });
    }

    /// Shows what changed on a GPU, to those who may not launch first.
    fn show(&mut self, gpu: usize, actions: &mut Actions) {
        let Engine {
            gpus,
            containers,
            config,
            ..
        } = self;
        let turns = &gpus[gpu].turns;
        for round in [false, true] {
            for entity in &turns.entities {
                let Some(container) = containers.get_mut(entity.seat) else {
                    continue;
                };
                let id = container.record.container;
                let Some(slice) = container.slices.get_mut(usize::from(entity.lane.0)) else {
                    continue;
                };
                let view = view(turns, entity, &slice.account, config);
                if may_launch(&view) == round && slice.shown != Some(view) {
                    slice.shown = Some(view);
                    actions.push(Action::SetLane {
                        container: id,
                        lane: entity.lane,
                        view,
                    });
                }
            }
        }
    }
}

/// Whether a page that says this lets its container launch.
fn may_launch(view: &LaneView) -> bool {
    view.mode == Mode::Open || gpuslice_wire::page::may_launch(view.turn)
}

/// What a container's page is to say.
fn view(turns: &Turns, entity: &Entity, account: &Account, config: &Config) -> LaneView {
    let mode = turns.mode();
    LaneView {
        mode,
        turn: entity.turn,
        turn_end: entity.turn_end,
        window_us: turns.window_us(),
        idle_us: if mode == Mode::Open {
            config.idle_open_us
        } else {
            config.idle_us
        },
        cap: account.cap(),
        reserved: account.reserved(),
        recall: 0,
        context: Bytes::ZERO,
    }
}
