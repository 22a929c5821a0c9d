//! Changes of the division of time at run time: policies of GPUs; weights, shares and classes of slices. Both are
//! written to disk before the answer, so that they survive a restart of the daemon.
//!
//! The policies are a small file in the runtime directory with one line for each GPU whose policy was ever
//! changed; a GPU without a line has the policy of the configuration:
//! ```text
//! GPU-8932f937-d72c-4106-c12f-20bd9faed9f6 weighted
//! ```

use crate::daemon::{Daemon, Task};
use crate::executor::{NO_REPLY, key_of};
use gpuslice_engine::{Event, Record, TimeChange, Token};
use gpuslice_wire::admin::{Answer, Denial};
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::policy::Policy;
use gpuslice_wire::select::{GpuRef, GpuSelector};
use gpuslice_wire::text::Selector;
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::str::FromStr;

/// Policies by GPU, as they are on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies(BTreeMap<GpuUuid, Policy>);

impl Display for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = self.0.iter();
        lines.try_for_each(|(gpu, policy)| writeln!(f, "{gpu} {policy}"))
    }
}

impl FromStr for Policies {
    type Err = String;
    fn from_str(text: &str) -> Result<Policies, String> {
        let mut policies = BTreeMap::new();
        for line in text.lines() {
            let bad = || format!("{line:?} is not a GPU and its policy");
            let (gpu, policy) = line.split_once(' ').ok_or_else(bad)?;
            let gpu = gpu.parse().map_err(|_| bad())?;
            policies.insert(gpu, policy.parse().map_err(|_| bad())?);
        }
        Ok(Policies(policies))
    }
}

/// The event that sets one GPU's policy.
fn wish(gpu: GpuUuid, policy: Policy) -> Event {
    let mut list = [None; gpuslice_wire::limits::GPUS_MAX];
    list[0] = Some(GpuRef::Uuid(gpu));
    Event::SetPolicy {
        token: NO_REPLY,
        gpus: GpuSelector::List(list),
        policy,
    }
}

impl Daemon {
    /// Restores the recorded policies. If the file cannot be read, logs it; the configuration's policy applies.
    pub fn restore_policies(&mut self, gpus: &[GpuUuid]) {
        match self.state.policies() {
            Ok(policies) => self.policies = policies,
            Err(why) => tracing::error!("{why}; GPUs have the policy of the configuration"),
        }
        let kept: Vec<Event> = gpus
            .iter()
            .filter_map(|gpu| Some(wish(*gpu, *self.policies.0.get(gpu)?)))
            .collect();
        kept.into_iter().for_each(|event| self.deliver(event));
    }

    /// Handles a command to change a policy.
    pub fn want_policy(&mut self, token: Token, gpu: Selector, policy: Policy) {
        match GpuSelector::parse(gpu.as_str()) {
            Err(why) => self.deny(key_of(token), Denial::Invalid, &why.to_string()),
            Ok(gpus) => self.tasks.push_back(Task::Step(Event::SetPolicy {
                token,
                gpus,
                policy,
            })),
        }
    }

    /// Records a changed policy and answers; if it cannot be recorded, restores the old one.
    pub fn policy_set(&mut self, token: Token, policy: Policy, was: &[(GpuUuid, Policy)]) {
        if token == NO_REPLY {
            return;
        }
        let mut policies = self.policies.clone();
        policies.0.extend(was.iter().map(|(gpu, _)| (*gpu, policy)));
        if let Err(why) = self.state.keep_policies(&policies) {
            let text = format!("{why}; the policy is unchanged, free disk space there");
            tracing::error!("{text}");
            for (gpu, policy) in was {
                self.tasks.push_front(Task::Step(wish(*gpu, *policy)));
            }
            return self.deny(key_of(token), Denial::Host, &text);
        }
        self.policies = policies;
        for (gpu, was) in was {
            tracing::info!(%gpu, %was, %policy, "policy changed");
        }
        self.answer(key_of(token), &Answer::Done {});
    }

    /// Records a slice's changed weight, share or class and answers; if it cannot be recorded, restores the old
    /// values.
    pub fn retuned(&mut self, token: Token, record: &Record, was: &TimeChange) {
        let container = record.container;
        if token == NO_REPLY {
            return;
        }
        if let Err(why) = self.state.rewrite(record) {
            let dir = self.state.container_dir(&container);
            let text = format!(
                "{}: {why}; the slice is unchanged, free disk space there",
                dir.display()
            );
            tracing::error!(%container, "{text}");
            self.tasks.push_front(Task::Step(Event::Retune {
                token: NO_REPLY,
                container,
                change: *was,
            }));
            return self.deny(key_of(token), Denial::Host, &text);
        }
        let share = record.share.map_or(0, |share| share.get());
        let (name, weight, class) = (record.name, record.weight.get(), record.class);
        tracing::info!(%container, %name, weight, share, %class, "weight, share or class changed");
        self.answer(key_of(token), &Answer::Done {});
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_back_and_invalid_ones_are_refused() {
        let all = (0u8..).zip(Policy::ALL);
        let policies = Policies(all.map(|(n, it)| (GpuUuid([n; 16]), it)).collect());
        assert_eq!(policies.to_string().parse(), Ok(policies));
        assert_eq!("".parse(), Ok(Policies::default()));
        for bad in ["soft", "GPU-1 soft", "\n", "x"] {
            assert!(bad.parse::<Policies>().is_err(), "{bad}");
        }
        let gpu = GpuUuid([1; 16]);
        assert!(format!("{gpu} hard").parse::<Policies>().is_err());
    }
}
