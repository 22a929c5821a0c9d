//! The demo's tenants: for each policy, tenants whose shares distinguish it from the others.
//!
//! Each tenant's due share is written out here from the policy's definition, not taken from the
//! daemon's ledger, because the demo judges this ledger.

use gpuslice_wire::policy::{Class, Policy};
use gpuslice_wire::units::{Bytes, MIB, Percent, Weight};

/// Default of `slots` in the node's configuration; a demo's daemon has no configuration.
const SLOTS: f64 = 16.0;

/// What the tenants do with the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Load {
    /// Keep its queue full
    #[default]
    Busy,
    /// Wait for each kernel of 1 ms and pause for 0.1 ms, as a program that synchronises after every step
    Steps,
}

impl Load {
    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Load::Busy => "busy",
            Load::Steps => "steps",
        }
    }

    /// Arguments of the tenant's program.
    fn words(self) -> &'static [&'static str] {
        match self {
            Load::Busy => &[],
            Load::Steps => &["--kernel-us", "1000", "--pause-us", "100"],
        }
    }
}

/// The whole that a due share refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Of {
    /// The time that all tenants got together: no tenant is limited.
    #[default]
    Busy,
    /// The GPU's time, used or not.
    Device,
}

/// A tenant's due share.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Due {
    /// The share, 0..=1.
    pub part: f64,
    /// The whole it refers to.
    pub of: Of,
}

/// Parameters of a tenant.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name, also the container's id.
    pub name: String,
    /// Memory cap.
    pub memory: Bytes,
    /// Memory limit above that, if it has one.
    pub limit: Option<Bytes>,
    /// Weight.
    pub weight: Weight,
    /// Share of the GPU's time.
    pub share: Option<Percent>,
    /// Priority class.
    pub class: Class,
    /// Its work for the GPU, if it has any.
    pub load: Option<Load>,
    /// The size of its allocations, if it is not the program's own.
    pub step: Option<Bytes>,
    /// Its due share.
    pub due: Due,
    /// Time after which it ends by itself, s.
    pub seconds: u32,
}

/// A tenant in short: name, weight, share, has work, due.
type Role = (&'static str, u32, Option<u32>, bool, f64);

/// The tenants of a policy, and the whole that their shares refer to.
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
        // Weights do not count; unassigned time stays unused.
        Some(Policy::Fair) => (
            [
                ("light", 1, None, true, slot),
                ("heavy", 4, None, true, slot),
                ("idle", 1, None, false, 0.0),
            ],
            Of::Device,
        ),
        // The idle tenant keeps its third.
        Some(Policy::Preemptive) => (
            [
                ("light", 1, None, true, 1.0 / 3.0),
                ("heavy", 4, None, true, 1.0 / 3.0),
                ("idle", 1, None, false, 0.0),
            ],
            Of::Device,
        ),
        // The idle tenant keeps its 4/7.
        Some(Policy::Weighted) => (
            [
                ("small", 1, None, true, 1.0 / 7.0),
                ("medium", 2, None, true, 2.0 / 7.0),
                ("idle", 4, None, false, 0.0),
            ],
            Of::Device,
        ),
        // A share without a limit is the limit too, under this policy; without a share the limit is weight/slots.
        Some(Policy::Fixed) => (
            [
                ("thirty", 1, Some(30), true, 0.3),
                ("fifty", 1, Some(50), true, 0.5),
                ("slots", 2, None, true, 2.0 * slot),
            ],
            Of::Device,
        ),
        // The others get the time that the idle tenant does not use.
        Some(Policy::Soft) => (
            [
                ("small", 1, None, true, 1.0 / 3.0),
                ("medium", 2, None, true, 2.0 / 3.0),
                ("idle", 4, None, false, 0.0),
            ],
            Of::Busy,
        ),
        // The driver divides by context, not by weight.
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
    /// Three tenants that demonstrate `policy`; without one, weights 1:2:4 with memory caps in the same
    /// ratio. Together they have half of the GPU's memory.
    pub fn three(policy: Option<Policy>, load: Load, gpu: Bytes, seconds: u32) -> [Plan; 3] {
        let (roles, of) = roles(policy);
        let weights: u32 = roles.iter().map(|role| role.1).sum();
        let unit = gpu.0 / 2 / u64::from(weights) / MIB * MIB;
        roles.map(|(name, weight, share, busy, part)| Plan {
            name: format!("{name}-{}", std::process::id()),
            memory: Bytes(unit * u64::from(weight)),
            limit: None,
            weight: match share {
                None => Weight::new(weight).unwrap_or(Weight::ONE),
                Some(_) => Weight::ONE,
            },
            share: share.and_then(|share| Percent::new(share).ok()),
            class: Class::Normal,
            load: busy.then_some(load),
            step: None,
            due: Due { part, of },
            seconds: seconds + 60,
        })
    }

    /// One that borrows, and one to which nearly all of the GPU is promised: together their caps fit, and the
    /// borrower's limit does not fit beside the other one's cap. The owner allocates in four large steps, of which the
    /// last one lacks at least a sixteenth of the GPU.
    pub fn lending(gpu: Bytes, seconds: u32) -> [Plan; 2] {
        let part = |of: u64| Bytes(gpu.0 / 16 / MIB * MIB * of);
        let plan = |name: &str, memory, limit, step| Plan {
            name: format!("{name}-{}", std::process::id()),
            memory,
            limit,
            weight: Weight::ONE,
            share: None,
            class: Class::Normal,
            load: Some(Load::Busy),
            step,
            due: Due::default(),
            seconds,
        };
        let step = Bytes(part(13).0 / 4 / MIB * MIB);
        [plan("borrower", part(1), Some(part(4)), None), plan("owner", part(14), None, Some(step))]
    }

    /// The tenant's arguments; it ends by itself even if the demo is killed.
    pub fn program(&self) -> Vec<String> {
        let seconds = self.seconds.to_string();
        let mut words = vec!["--with-reader".into(), "--seconds".into(), seconds];
        let more = self.load.map_or(&["--idle"][..], Load::words);
        words.extend(more.iter().map(|word| (*word).to_owned()));
        if let Some(step) = self.step {
            words.extend(["--step-mib".to_owned(), (step.0 / MIB).to_string()]);
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
            let plans = Plan::three(policy, Load::default(), Bytes(16 << 30), 10);
            let memory: u64 = plans.iter().map(|plan| plan.memory.0).sum();
            assert!(memory <= 8 << 30 && memory > 7 << 30, "{policy:?}");
            let parts: f64 = plans.iter().map(|plan| plan.due.part).sum();
            assert!(parts <= 1.0 + 1e-9, "{policy:?}");
            let whole = (parts - 1.0).abs() < 1e-9;
            assert_eq!(whole, plans[0].due.of == Of::Busy, "{policy:?}");
        }
    }

    #[test]
    fn a_load_is_that_of_the_tenants_with_work() {
        let pauses = |plan: &Plan| plan.program().iter().any(|word| word == "--pause-us");
        let three = |load| Plan::three(Some(Policy::Soft), load, Bytes(16 << 30), 10);
        assert!(!three(Load::Busy).iter().any(pauses));
        assert_eq!(three(Load::Steps).each_ref().map(pauses), [true, true, false]);
        let idle = |plan: &Plan| plan.program().iter().any(|word| word == "--idle");
        assert_eq!(three(Load::Steps).each_ref().map(idle), [false, false, true]);
    }
}
