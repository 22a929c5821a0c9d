//! What policies and promises give each container, by a table of its own: cap, weight and share.

use std::collections::BTreeMap;

use gpuslice_engine::Record;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::policy::Policy;

use super::{Observer, Place, Seat};

impl Observer {
    /// What was promised to one container is this from now on.
    pub(super) fn retune(&mut self, record: &Record) {
        let line = |seat: &Seat| (seat.record.class, seat.share > 0);
        let its = |(id, _): &Place| *id == record.container;
        let seats = self.seats.iter().filter(|(place, _)| its(place));
        let was: BTreeMap<Place, _> = seats.map(|(place, seat)| (*place, line(seat))).collect();
        for place in was.keys() {
            if let Some(seat) = self.seats.get_mut(place) {
                seat.tuned += u64::from(seat.record.class != record.class);
                seat.record = record.clone();
            }
        }
        self.tune();
        for (place, was) in was {
            if let Some(seat) = self.seats.get_mut(&place) {
                seat.guest |= !seat.open() && seat.pays() && was != line(seat);
            }
        }
    }

    /// All of them anew.
    pub(super) fn tune(&mut self) {
        let gpus: Vec<GpuUuid> = self.seats.values().map(|seat| seat.gpu).collect();
        for gpu in gpus {
            let policy = self.policies.get(&gpu).copied();
            let policy = policy.unwrap_or(self.config.policy);
            let number = |seat: &Seat| u64::from(seat.record.weight.get());
            let share = |seat: &Seat| seat.record.share.map_or(0, |share| u64::from(share.get()));
            // what shares leave is divided among those without one
            let shares: u64 = self.on(gpu).map(|(_, seat)| share(seat)).sum();
            let rest = 100u64.saturating_sub(shares).max(1);
            let others = self.on(gpu).filter(|(_, seat)| share(seat) == 0);
            let weights: Vec<u64> = others.map(|(_, seat)| number(seat)).collect();
            let (count, all) = (weights.len() as u64, weights.iter().sum::<u64>());
            let slots = u64::from(self.config.slots);
            for seat in self.seats.values_mut().filter(|seat| seat.gpu == gpu) {
                let (mine, share) = (number(seat), share(seat));
                let cap = match policy {
                    Policy::Native => (1, 1),
                    _ if share > 0 => (share, 100),
                    Policy::Soft => (1, 1),
                    Policy::Fixed => (mine, slots),
                    Policy::Fair => (1, slots),
                    Policy::Preemptive => (rest, 100 * count),
                    Policy::Weighted => (mine * rest, 100 * all),
                };
                seat.cap = if cap.0 < cap.1 { cap } else { (1, 1) };
                let even = matches!(policy, Policy::Fair | Policy::Preemptive);
                let weight = if even { 1 } else { mine };
                seat.native = policy == Policy::Native;
                let share = if seat.native { 0 } else { share };
                let weight = if share > 0 { share } else { weight };
                seat.tuned += u64::from((seat.weight, seat.share) != (weight, share));
                (seat.weight, seat.share) = (weight, share);
            }
        }
    }
}
