//! What containers see: a step's changes become pages.
//!
//! Lanes of a GPU that had to decide are shown in an order, first to those who may not launch any
//! more; books that changed elsewhere, and the host's, which have no turns, follow after.

use gpuslice_wire::ids::{ContainerId, Lane};
use gpuslice_wire::units::{Bytes, Instant};

use crate::action::{Action, Actions, LaneView, Mode};
use crate::config::Config;
use crate::engine::{Engine, Gpu};
use crate::lifecycle::{Seat, Slice};
use crate::sched::entity::Entity;

impl Engine {
    /// Lets a container that is about to go launch nothing more.
    pub(crate) fn shut(&mut self, seat: Seat, actions: &mut Actions) {
        let Some(it) = self.containers.get_mut(seat) else {
            return;
        };
        let container = it.record.container;
        for (lane, slice) in it.slices.iter_mut().filter(|(_, it)| it.gpu.is_some()) {
            if let Some(view) = slice.shown.filter(may_launch) {
                let turn = view.turn.wrapping_add(view.turn % 2);
                let view = LaneView {
                    mode: Mode::Turns,
                    gates: false,
                    gate_open: true,
                    turn,
                    ..view
                };
                slice.shown = Some(view);
                actions.push(Action::SetLane {
                    container,
                    lane,
                    view,
                });
            }
        }
    }

    /// Shows what changed on a GPU, to those who may not launch first.
    pub(crate) fn show(&mut self, gpu: usize, actions: &mut Actions) {
        let Engine {
            gpus,
            containers,
            config,
            ..
        } = self;
        let gpu = &gpus[gpu];
        for round in [false, true] {
            for entity in &gpu.turns.entities {
                let Some(container) = containers.get_mut(entity.seat) else {
                    continue;
                };
                let id = container.record.container;
                let alone = container.slices.gpus.len() == 1;
                let Some(slice) = container.slices.get_mut(entity.lane) else {
                    continue;
                };
                let view = view(Some((gpu, entity)), slice, alone, config);
                if may_launch(&view) == round {
                    show(id, entity.lane, slice, view, actions);
                }
            }
        }
    }

    /// Shows books that changed.
    pub(crate) fn show_books(&mut self, actions: &mut Actions) {
        let Engine {
            gpus,
            containers,
            config,
            changed,
            ..
        } = self;
        for (seat, lane) in changed.drain(..) {
            let Some(container) = containers.get_mut(seat) else {
                continue;
            };
            let id = container.record.container;
            let alone = container.slices.gpus.len() == 1;
            let Some(slice) = container.slices.get_mut(lane) else {
                continue;
            };
            let gpu = slice.gpu.map(|gpu| &gpus[gpu]);
            let on = gpu.and_then(|gpu| gpu.turns.find(seat).map(|entity| (gpu, entity)));
            let view = view(on, slice, alone, config);
            show(id, lane, slice, view, actions);
        }
    }
}

/// Whether a page that says this lets its container launch.
fn may_launch(view: &LaneView) -> bool {
    view.mode == Mode::Open || gpuslice_wire::page::may_launch(view.turn)
}

fn show(id: ContainerId, lane: Lane, slice: &mut Slice, view: LaneView, actions: &mut Actions) {
    if slice.shown != Some(view) {
        slice.shown = Some(view);
        actions.push(Action::SetLane {
            container: id,
            lane,
            view,
        });
    }
}

/// What a container's page is to say of an account. There are no gates where the GPU is not `alone` in
/// the slice: a kernel on one may wait for another one behind the gate of the other.
fn view(on: Option<(&Gpu, &Entity)>, slice: &Slice, alone: bool, config: &Config) -> LaneView {
    let cap = slice.account.cap();
    let books = LaneView {
        mode: Mode::Open,
        gates: false,
        gate_open: true,
        turn: 0,
        turn_end: Instant(0),
        window_us: 0,
        idle_us: 0,
        cap,
        reserved: slice.account.reserved(),
        recall: slice.recall.number(),
        context: Bytes::ZERO,
    };
    let Some((Gpu { turns, context, .. }, entity)) = on else {
        return books;
    };
    let mode = turns.mode();
    LaneView {
        mode,
        gates: alone && turns.gates(entity),
        gate_open: turns.gate_open(entity),
        turn: entity.turn,
        turn_end: entity.turn_end,
        window_us: turns.window_us(),
        idle_us: match mode {
            Mode::Open => config.idle_open_us,
            Mode::Turns => config.idle_us,
        },
        // another container's word: it must not be able to keep this one from ever trying
        context: context.map_or(Bytes::ZERO, |least| least.min(Bytes(cap.0 / 2))),
        ..books
    }
}
