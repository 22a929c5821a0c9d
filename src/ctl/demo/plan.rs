//! Who is on stage: for each policy the tenants whose shares tell it from the others.
//!
//! What each is due is written out here, from the policy's words and not from the daemon's books,
//! which are what is judged.

use gpuslice_wire::policy::{Class, Policy};
use gpuslice_wire::units::{Bytes, MIB, Percent, Weight};

/// Slices a GPU is meant for unless the node's configuration says otherwise; a demo's daemon has none.
const SLOTS: f64 = 16.0;

/// Of what a part is a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Of {
    /// Of what all tenants got together: nobody is limited.
    #[default]
    Busy,
    /// Of the GPU's time, used or not.
    Device,
}

/// What a tenant is due.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Due {
    /// 0..=1.
    pub part: f64,
    /// Of what.
    pub of: Of,
}

/// What a tenant is to be.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name, also the container's id.
    pub name: String,
    /// Memory cap.
    pub memory: Bytes,
    /// Weight.
    pub weight: Weight,
    /// Hard share.
    pub share: Option<Percent>,
    /// Priority class.
    pub class: Class,
    /// Whether it has work for the GPU.
    pub busy: bool,
    /// What it should get.
    pub due: Due,
    /// How long it would run if nobody ended it, s.
    pub seconds: u32,
}

/// A tenant in short: name, weight, hard share, has work, due.
type Role = (&'static str, u32, Option<u32>, bool, f64);

/// The tenants of a policy, and of what their parts are.
fn roles(policy: Option<Policy>) -> ([Role; 3], Of) {
    let slot = 1.0 / SLOTS;
    match policy {
        None => (
            [
                ("small", 1, None, true, 1.0 / 7.0),
                ("medium", 2, None, true, 2.0 / 7.0),
                ("large", 4, None, true, 4.0 / 7.0),
            ],
            Of::Busy,
        ),
        // A weight is nothing here, and what nobody owns stays unused.
        Some(Policy::Fair) => (
            [
                ("light", 1, None, true, slot),
                ("heavy", 4, None, true, slot),
                ("idle", 1, None, false, 0.0),
            ],
            Of::Device,
        ),
        // The idle one keeps its third.
        Some(Policy::Preemptive) => (
            [
                ("light", 1, None, true, 1.0 / 3.0),
                ("heavy", 4, None, true, 1.0 / 3.0),
                ("idle", 1, None, false, 0.0),
            ],
            Of::Device,
        ),
        // The idle one keeps its four parts of seven.
        Some(Policy::Weighted) => (
            [
                ("small", 1, None, true, 1.0 / 7.0),
                ("medium", 2, None, true, 2.0 / 7.0),
                ("idle", 4, None, false, 0.0),
            ],
            Of::Device,
        ),
        // A share is a limit, also while the others leave time; without one it is weight by slots.
        Some(Policy::Fixed) => (
            [
                ("thirty", 1, Some(30), true, 0.3),
                ("fifty", 1, Some(50), true, 0.5),
                ("slots", 2, None, true, 2.0 * slot),
            ],
            Of::Device,
        ),
        // What the idle one does not use, the others get.
        Some(Policy::Soft) => (
            [
                ("small", 1, None, true, 1.0 / 3.0),
                ("medium", 2, None, true, 2.0 / 3.0),
                ("idle", 4, None, false, 0.0),
            ],
            Of::Busy,
        ),
        // The driver knows contexts, not weights.
        Some(Policy::Native) => (
            [
                ("light", 1, None, true, 0.5),
                ("heavy", 4, None, true, 0.5),
                ("idle", 1, None, false, 0.0),
            ],
            Of::Busy,
        ),
    }
}

impl Plan {
    /// Three tenants that show what `policy` means; without one weights 1:2:4 with caps on memory in
    /// the same ratio. Together they have half of the GPU's memory.
    pub fn three(policy: Option<Policy>, gpu: Bytes, seconds: u32) -> [Plan; 3] {
        let (roles, of) = roles(policy);
        let weights: u32 = roles.iter().map(|role| role.1).sum();
        let unit = gpu.0 / 2 / u64::from(weights) / MIB * MIB;
        roles.map(|(name, weight, share, busy, part)| Plan {
            name: format!("{name}-{}", std::process::id()),
            memory: Bytes(unit * u64::from(weight)),
            weight: match share {
                None => Weight::new(weight).unwrap_or(Weight::ONE),
                Some(_) => Weight::ONE,
            },
            share: share.and_then(|share| Percent::new(share).ok()),
            class: Class::Normal,
            busy,
            due: Due { part, of },
            seconds: seconds + 60,
        })
    }

    /// Ends by itself also if we are killed.
    pub fn program(&self) -> Vec<String> {
        let seconds = self.seconds.to_string();
        let mut words = vec!["--with-reader".into(), "--seconds".into(), seconds];
        if !self.busy {
            words.push("--idle".into());
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_promised_what_there_is_not() {
        let policies = [None].into_iter().chain(Policy::ALL.map(Some));
        for policy in policies {
            let plans = Plan::three(policy, Bytes(16 << 30), 10);
            let memory: u64 = plans.iter().map(|plan| plan.memory.0).sum();
            assert!(memory <= 8 << 30 && memory > 7 << 30, "{policy:?}");
            let parts: f64 = plans.iter().map(|plan| plan.due.part).sum();
            assert!(parts <= 1.0 + 1e-9, "{policy:?}");
            let whole = (parts - 1.0).abs() < 1e-9;
            assert_eq!(whole, plans[0].due.of == Of::Busy, "{policy:?}");
        }
    }
}
