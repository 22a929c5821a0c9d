//! High before fair: a fair container's turn ends in the step in which a high one begins to
//! wait, except for slots, which are of the shortest length and rare; and fair ones get slots.
//!
//! GPUs with a high container that also has a hard share are left out: from outside it cannot
//! be told when that one may run.

use std::collections::BTreeMap;

use gpuslice_engine::Mode;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::policy::Class;

use super::Objection;
use crate::observer::{Observer, Seat};

/// What happened on one GPU.
#[derive(Debug, Default)]
struct Gpu {
    /// Turn word and start of the present turn of a fair one, and whether it is a slot.
    turn: Option<(u32, u64, bool)>,
    /// When the last slot began.
    slot: Option<u64>,
    /// When a fair one was last on the GPU, or none waited.
    served: u64,
}

/// The checker of classes.
#[derive(Debug, Default)]
pub struct Priority(BTreeMap<GpuUuid, Gpu>);

impl Priority {
    /// After a step.
    ///
    /// # Errors
    /// The objection.
    pub fn after_step(&mut self, seen: &Observer) -> Result<(), Objection> {
        let gpus: Vec<GpuUuid> = seen.seats.values().map(|seat| seat.gpu).collect();
        for gpu in gpus {
            let strange = seen
                .on(gpu)
                .any(|(_, s)| s.record.class == Class::High && s.record.share.is_some());
            if strange || seen.gap {
                self.0.remove(&gpu);
            } else {
                let new = || Gpu {
                    served: seen.now,
                    ..Gpu::default()
                };
                self.0.entry(gpu).or_insert_with(new).check(seen, gpu)?;
            }
        }
        Ok(())
    }
}

impl Gpu {
    fn check(&mut self, seen: &Observer, gpu: GpuUuid) -> Result<(), Objection> {
        let all: Vec<&Seat> = seen.on(gpu).map(|(_, seat)| seat).collect();
        let gated = all
            .iter()
            .any(|s| s.view.is_some_and(|view| view.mode == Mode::Turns));
        let may = |s: &Seat| s.wants() && s.closing.is_none();
        let high = all.iter().any(|s| s.record.class == Class::High && may(s));
        let holder = all
            .iter()
            .find(|s| s.holds() && s.record.class != Class::High);
        let now = seen.now;
        match holder.map(|s| (s, s.view.map_or(0, |view| view.turn))) {
            Some((seat, word)) => {
                let known = self
                    .turn
                    .filter(|turn| (turn.0, turn.1) == (word, seat.granted));
                let turn = known.unwrap_or((word, seat.granted, high));
                if turn.2 && known.is_none() {
                    self.began(seen)?;
                }
                self.turn = Some(turn);
                if high && !turn.2 {
                    return Err(format!(
                        "a fair turn goes on on {gpu} while a high one waits"
                    ));
                }
                if high && now >= seat.granted + seen.config.turn_min.0 {
                    return Err(format!(
                        "a slot on {gpu} goes on after {} ns",
                        now - seat.granted
                    ));
                }
            }
            None => self.turn = None,
        }
        let waits = all
            .iter()
            .any(|s| s.record.class != Class::High && s.record.share.is_none() && may(s));
        let on = all
            .iter()
            .any(|s| s.record.class != Class::High && s.pays());
        if on || !waits || !gated {
            self.served = now;
        }
        let longest = all.iter().map(|s| s.longest).max().unwrap_or(0);
        let patience = 1_000_000_000 + longest + seen.passed + seen.config.turn_min.0;
        if seen.config.high_cap.get() < 100 && now > self.served + patience {
            return Err(format!(
                "fair ones starve on {gpu} since {} ns",
                now - self.served
            ));
        }
        Ok(())
    }

    /// A slot begins.
    fn began(&mut self, seen: &Observer) -> Result<(), Objection> {
        let every = seen.config.turn_min.0 * 100 / u64::from(100 - seen.config.high_cap.get());
        if let Some(last) = self.slot.replace(seen.now)
            && seen.now < last + every
        {
            return Err(format!(
                "slots follow each other after {} ns",
                seen.now - last
            ));
        }
        Ok(())
    }
}
