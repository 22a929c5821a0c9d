//! Memory: nobody is granted beyond the cap, every question is answered once, and what a process
//! had is free when it is gone.

use std::collections::{BTreeMap, BTreeSet};

use gpuslice_engine::{Action, Event, Token};
use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use gpuslice_wire::units::Bytes;

use super::Objection;
use crate::observer::Observer;

/// A question under way.
#[derive(Clone, Copy, Debug)]
struct Question {
    client: ClientId,
    lane: Lane,
    need: Bytes,
    wish: Bytes,
}

/// The checker's own ledger.
#[derive(Debug, Default)]
pub struct Books {
    homes: BTreeMap<ClientId, ContainerId>,
    /// Every identity ever given: none is given twice.
    known: BTreeSet<ClientId>,
    granted: BTreeMap<(ClientId, Lane), u64>,
    asked: BTreeMap<u64, Question>,
    /// The clock jumped once: processes may have come back later than was waited for.
    jumped: bool,
}

impl Books {
    /// The books of a new engine in the same world.
    #[must_use]
    pub fn restart(&self) -> Books {
        Books {
            jumped: self.jumped,
            ..Books::default()
        }
    }

    /// Looks at one step.
    ///
    /// # Errors
    /// The objection.
    pub fn step(
        &mut self,
        seen: &Observer,
        event: &Event,
        actions: &[Action],
    ) -> Result<(), Objection> {
        self.jumped |= seen.gap;
        match *event {
            Event::Reserve {
                client,
                token,
                lane,
                need,
                wish,
            } if self.homes.contains_key(&client) => {
                self.asked.insert(
                    token.0,
                    Question {
                        client,
                        lane,
                        need,
                        wish,
                    },
                );
            }
            Event::Release {
                client,
                lane,
                bytes,
            } if self.homes.contains_key(&client) => {
                let has = self.granted.entry((client, lane)).or_default();
                let cut = actions
                    .iter()
                    .any(|a| matches!(a, Action::Disconnect { .. }));
                match has.checked_sub(bytes.0) {
                    Some(rest) => *has = rest,
                    None if cut => {}
                    None => return Err(format!("{client:?} released more than it had")),
                }
            }
            Event::Gone { client } => self.part(client),
            _ => {}
        }
        actions
            .iter()
            .try_for_each(|action| self.action(seen, event, action))?;
        match event {
            Event::Claims { .. } => Ok(()),
            _ => self.within_caps(seen),
        }
    }

    fn action(&mut self, seen: &Observer, event: &Event, action: &Action) -> Result<(), Objection> {
        match *action {
            Action::Attached {
                client, container, ..
            } => {
                self.homes.insert(client, container);
                if !self.known.insert(client) {
                    return Err(format!("{client:?} was somebody else"));
                }
                if let Event::Attach { held, .. } = event {
                    for (lane, bytes) in held.iter().enumerate().filter(|(_, b)| b.0 > 0) {
                        self.granted.insert((client, Lane(lane as u8)), bytes.0);
                    }
                }
            }
            Action::Disconnect { client, .. } => self.part(client),
            Action::Reserved {
                client,
                token,
                lane,
                bytes,
            } => {
                let q = self.answered(client, token, lane)?;
                if bytes < q.need || bytes > q.wish.max(q.need) {
                    return Err(format!(
                        "{bytes:?} granted for {:?} to {:?}",
                        q.need, q.wish
                    ));
                }
                *self.granted.entry((client, lane)).or_default() += bytes.0;
                let (cap, reserved) = self.lane(seen, client, lane);
                if reserved > cap {
                    return Err(format!("{client:?} was granted beyond the cap {cap}"));
                }
            }
            Action::Refused {
                client,
                token,
                lane,
                need,
                left,
            } => {
                self.answered(client, token, lane)?;
                let (cap, reserved) = self.lane(seen, client, lane);
                if need <= left || left.0 != cap.saturating_sub(reserved) {
                    return Err(format!("{need:?} refused with {left:?} left of {cap}"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn answered(&mut self, by: ClientId, token: Token, lane: Lane) -> Result<Question, Objection> {
        let question = self.asked.remove(&token.0);
        question
            .filter(|q| (q.client, q.lane) == (by, lane))
            .ok_or_else(|| format!("{token:?} of {by:?} was answered and not asked"))
    }

    fn lane(&self, seen: &Observer, client: ClientId, lane: Lane) -> (u64, u64) {
        let Some(&home) = self.homes.get(&client) else {
            return (0, 0);
        };
        let seat = seen.seats.get(&(home, lane));
        let cap = seat.map_or(0, |seat| seat.record.lanes[usize::from(lane.0)].cap.0);
        (cap, self.reserved(home, lane))
    }

    /// What all processes of a container were granted on a lane.
    #[must_use]
    pub fn reserved(&self, container: ContainerId, lane: Lane) -> u64 {
        let mine = self
            .granted
            .iter()
            .filter(|((client, at), _)| *at == lane && self.homes.get(client) == Some(&container));
        mine.map(|(_, bytes)| bytes).sum()
    }

    fn part(&mut self, client: ClientId) {
        self.homes.remove(&client);
        self.granted.retain(|(other, _), _| *other != client);
        self.asked.retain(|_, question| question.client != client);
    }

    /// At every instant, and also while processes come back to a new daemon.
    fn within_caps(&self, seen: &Observer) -> Result<(), Objection> {
        let mut sums: BTreeMap<(ContainerId, Lane), u64> = BTreeMap::new();
        for ((client, lane), bytes) in &self.granted {
            if let Some(home) = self.homes.get(client) {
                *sums.entry((*home, *lane)).or_default() += bytes;
            }
        }
        for ((container, lane), seat) in &seen.seats {
            let reserved = sums.get(&(*container, *lane)).copied().unwrap_or(0);
            let shown = seat.view.map_or(0, |view| view.reserved.0);
            if shown != reserved {
                return Err(format!(
                    "{container}'s page says {shown} reserved, not {reserved}"
                ));
            }
            if reserved > seat.record.lanes[usize::from(lane.0)].cap.0 && !self.jumped {
                return Err(format!("{container} has {reserved} bytes, beyond its cap"));
            }
        }
        Ok(())
    }

    /// All processes are gone.
    ///
    /// # Errors
    /// If something is still granted or asked for.
    pub fn nobody_left(&self) -> Result<(), Objection> {
        if self.granted.is_empty() && self.asked.is_empty() && self.homes.is_empty() {
            return Ok(());
        }
        Err(format!(
            "left over: {:?}, {:?}, {:?}",
            self.homes, self.granted, self.asked
        ))
    }
}
