//! Pages: a step's changes as the containers see them.
//!
//! The pages of a GPU that decided are written first to containers that may not launch any more. Ledgers
//! that changed elsewhere, and the host's, which have no turns, follow.
//!
//! A GPU decides hundreds of times a second, and mostly one or two containers see a change. So the last
//! written state of turns is kept beside them ([`ToAll`], [`ToOne`]), and an unchanged page costs a
//! comparison.

use gpuslice_wire::ids::{ContainerId, Lane};
use gpuslice_wire::units::{Bytes, Instant};

use crate::action::{Action, Actions, LaneView, Mode};
use crate::config::Config;
use crate::engine::Engine;
use crate::index::ContainerIndex;
use crate::lifecycle::Slice;
use crate::sched::gpu::{ToAll, ToOne};

impl Engine {
    /// Takes the permission to launch from a container that is about to be removed.
    pub(crate) fn shut(&mut self, index: ContainerIndex, actions: &mut Actions) {
        let Some(it) = self.containers.get_mut(index) else {
            return;
        };
        let container = it.record.container;
        for (lane, slice) in it.slices.iter_mut().filter(|(_, it)| it.gpu.is_some()) {
            if let Some(view) = slice.shown.filter(|it| may_launch(it.mode, it.turn)) {
                let turn = view.turn.wrapping_add(view.turn % 2);
                let view =
                    LaneView { mode: Mode::Turns, gates: false, gate_open: true, turn, ..view };
                slice.shown = Some(view);
                actions.push(Action::SetLane { container, lane, view });
            }
        }
    }

    /// Writes the changes of a GPU, first to containers that may not launch. A switch changes two of its
    /// containers, whatever their number: the others are not looked up.
    pub(crate) fn show(&mut self, gpu: usize, actions: &mut Actions) {
        let Engine { gpus, containers, config, .. } = self;
        let all = gpus[gpu].turns.to_all();
        let anew = gpus[gpu].shown.replace(all) != Some(all);
        for round in [false, true] {
            for at in 0..gpus[gpu].turns.entities.len() {
                let entity = &mut gpus[gpu].turns.entities[at];
                let one = all.and_to(entity);
                let changed = anew || entity.shown != Some(one);
                if !changed || may_launch(all.mode, one.turn) != round {
                    continue;
                }
                entity.shown = Some(one);
                let (index, lane) = (entity.index, entity.lane);
                let Some(container) = containers.get_mut(index) else {
                    continue;
                };
                let id = container.record.container;
                let Some(slice) = container.slices.get_mut(lane) else {
                    continue;
                };
                // Mostly the turn alone has changed. Where the ledger has, too, `show_ledgers` follows.
                let view = match slice.shown.filter(|_| !anew) {
                    Some(shown) => with_turn(shown, one),
                    None => view(Some((all, one)), slice, config),
                };
                show(id, lane, slice, view, actions);
            }
        }
    }

    /// Writes changed ledgers.
    pub(crate) fn show_ledgers(&mut self, actions: &mut Actions) {
        let Engine { gpus, containers, config, changed, .. } = self;
        for (index, lane) in changed.drain(..) {
            let Some(container) = containers.get_mut(index) else {
                continue;
            };
            let id = container.record.container;
            let Some(slice) = container.slices.get_mut(lane) else {
                continue;
            };
            let gpu = slice.gpu.map(|gpu| (gpus[gpu].turns.to_all(), gpus[gpu].turns.find(index)));
            let on = gpu.and_then(|(all, entity)| Some((all, all.and_to(entity?))));
            let view = view(on, slice, config);
            show(id, lane, slice, view, actions);
        }
    }
}

impl Engine {
    /// # Panics
    /// If a page shows something that no longer holds; see `check`.
    pub(crate) fn check_shown(&self) {
        for (index, container) in self.containers.iter() {
            for (lane, slice) in container.slices.iter() {
                let gpu = slice.gpu.map(|gpu| &self.gpus[gpu]);
                let on = gpu.and_then(|gpu| {
                    let all = gpu.turns.to_all();
                    Some((all, all.and_to(gpu.turns.find(index)?)))
                });
                let view = view(on, slice, &self.config);
                let id = container.record.container;
                assert_eq!(slice.shown, Some(view), "{id} {lane:?} sees the past");
            }
        }
    }
}

/// Whether a page with this content lets its container launch.
fn may_launch(mode: Mode, turn: u32) -> bool {
    mode == Mode::Open || gpuslice_wire::page::may_launch(turn)
}

fn show(id: ContainerId, lane: Lane, slice: &mut Slice, view: LaneView, actions: &mut Actions) {
    if slice.shown != Some(view) {
        slice.shown = Some(view);
        actions.push(Action::SetLane { container: id, lane, view });
    }
}

/// The content of a container's page for one account.
fn view(on: Option<(ToAll, ToOne)>, slice: &Slice, config: &Config) -> LaneView {
    let cap = slice.account.limit();
    let ledger = LaneView {
        mode: Mode::Open,
        gates: false,
        gate_open: true,
        turn: 0,
        turn_end: Instant(0),
        window_us: 0,
        idle_us: 0,
        cap,
        reserved: slice.account.reserved().saturating_add(slice.withheld),
        untracked: slice.untracked().saturating_add(slice.withheld),
        recall: slice.recall.number(),
        context: Bytes::ZERO,
    };
    let Some((all, one)) = on else {
        return ledger;
    };
    let without_turn = LaneView {
        mode: all.mode,
        window_us: all.window_us,
        idle_us: match all.mode {
            Mode::Open => config.idle_open_us,
            Mode::Turns => config.idle_us,
        },
        // A figure that includes other memory must not keep the container from ever trying.
        context: slice.context.unwrap_or_default().min(Bytes(cap.0 / 2)),
        ..ledger
    };
    with_turn(without_turn, one)
}

/// A page with this turn.
fn with_turn(view: LaneView, ToOne { turn, turn_end, gates, gate_open }: ToOne) -> LaneView {
    LaneView { turn, turn_end, gates, gate_open, ..view }
}
