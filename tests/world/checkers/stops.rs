//! Work that is late and may be stopped on the GPU: no sooner than an honest drain takes, but somebody looks when
//! that is over; never that of a gang; and it goes on in its next turn, and only then.

use std::collections::BTreeMap;

use gpuslice_engine::Action;
use gpuslice_wire::ids::{ContainerId, Lane};

use super::Objection;
use crate::observer::{Hold, Observer, Place, Seat};

/// The checker of stops.
#[derive(Debug, Default)]
pub struct Stops {
    /// The close after which each was last asked to be stopped.
    asked: BTreeMap<Place, u64>,
    /// Asked to go on, in this step.
    resumed: Vec<Place>,
}

/// How long after its close one is waited for, ns, if somebody who goes before it waits (`such`).
fn patience(seen: &Observer, seat: &Seat, such: impl Fn(&Seat) -> bool) -> u64 {
    let above = |other: &Seat| other.record.class < seat.record.class && such(other);
    match seen.on(seat.gpu).any(|(_, other)| above(other)) {
        // what is in flight by the rules, half of it again, and 0.1 ms
        true => seat.view.map_or(0, |view| u64::from(view.window_us)) * 1_500 + 100_000,
        false => seen.config.drain.0,
    }
}

impl Stops {
    /// Before an action changes what is seen.
    ///
    /// # Errors
    /// The objection.
    pub fn before(&mut self, seen: &Observer, action: &Action) -> Result<(), Objection> {
        match *action {
            Action::Stop { container, lane } => self.stop(seen, (container, lane)),
            Action::Resume { container, lane } => self.resume(seen, (container, lane)),
            _ => Ok(()),
        }
    }

    fn stop(&mut self, seen: &Observer, place: (ContainerId, Lane)) -> Result<(), Objection> {
        let who = place.0;
        let Some(seat) = seen.seats.get(&place) else {
            return Err(format!("{who} is stopped and not known"));
        };
        let Some(closed) = seat.closing.filter(|_| !seat.quiet()) else {
            return Err(format!("{who} is stopped and has nothing to drain"));
        };
        if seat.gang || seat.hold != Hold::Free {
            return Err(format!(
                "{who} is stopped as {:?}, gang {}",
                seat.hold, seat.gang
            ));
        }
        let (waited, least) = (seen.now - closed, patience(seen, seat, Seat::wants));
        if waited < least {
            return Err(format!("{who} is stopped after {waited} ns, not {least}"));
        }
        self.asked.insert(place, closed.max(seat.shut));
        Ok(())
    }

    fn resume(&mut self, seen: &Observer, place: (ContainerId, Lane)) -> Result<(), Objection> {
        let stopped = seen.seats.get(&place).map(|seat| seat.hold);
        self.resumed.push(place);
        match stopped {
            Some(Hold::Stopped) => Ok(()),
            other => Err(format!("{} goes on and was {other:?}", place.0)),
        }
    }

    /// After a step.
    ///
    /// # Errors
    /// The objection.
    pub fn after_step(&mut self, seen: &Observer) -> Result<(), Objection> {
        self.asked.retain(|place, _| seen.seats.contains_key(place));
        let runs = |seat: &Seat| seat.holds() || seat.open();
        for place in self.resumed.drain(..) {
            if !seen.seats.get(&place).is_some_and(runs) {
                return Err(format!("{} goes on out of turn", place.0));
            }
        }
        for (place, seat) in &seen.seats {
            if seat.hold == Hold::Stopped && runs(seat) {
                return Err(format!("{} may launch and stays stopped", place.0));
            }
        }
        match self.due(seen) {
            Some((who, due)) if due <= seen.now => Err(format!(
                "{who} is to be stopped since {} ns",
                seen.now - due
            )),
            _ => Ok(()),
        }
    }

    /// Who is to be stopped first, and when, if nothing happens.
    #[must_use]
    pub fn due(&self, seen: &Observer) -> Option<(ContainerId, u64)> {
        let waits = |other: &Seat| !other.gang && other.may_wait() && !other.capped();
        let late = seen.seats.iter().filter(|(place, seat)| {
            let closed = seat.closing.map(|since| since.max(seat.shut));
            let tried = self.asked.get(place) == closed.as_ref();
            let none = seat.gang || seat.overrun || seat.native || seat.said.is_empty();
            let busy = seat.hold == Hold::Free && !seat.quiet();
            seen.config.stop && !tried && !none && busy
        });
        let due = late.filter_map(|(place, seat)| {
            let closed = seat.closing?.max(seat.shut);
            Some((place.0, closed + patience(seen, seat, waits)))
        });
        due.min_by_key(|(_, due)| *due)
    }
}
