//! Policies of GPUs that were changed at run time. A change is written to disk before the answer, so that it survives a
//! restart of the daemon.
//!
//! The policies are a small file in the runtime directory with one line for each GPU whose policy was ever
//! changed; a GPU without a line has the policy of the configuration:
//! ```text
//! GPU-8932f937-d72c-4106-c12f-20bd9faed9f6 weighted
//! ```

use crate::replies::{Denied, NO_REPLY};
use crate::state::State;
use gpuslice_engine::{Event, Token};
use gpuslice_wire::admin::Denial;
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
    Event::SetPolicy { token: NO_REPLY, gpus: GpuSelector::List(list).into(), policy }
}

/// The event for a command to change a policy.
///
/// # Errors
/// The GPU cannot be parsed.
pub fn wanted(token: Token, gpu: Selector, policy: Policy) -> Result<Event, Denied> {
    let gpus = GpuSelector::parse(gpu.as_str());
    let gpus = gpus.map_err(|why| (Denial::Invalid, why.to_string()))?;
    Ok(Event::SetPolicy { token, gpus: gpus.into(), policy })
}

impl Policies {
    /// Reads the recorded policies. If the file cannot be read, logs it; the configuration's policy applies.
    pub fn restored(state: &State) -> Policies {
        let path = state.policies_path();
        let wrong = |why| format!("{}: {why}; delete it", path.display());
        let read = state.policies().and_then(|text| text.parse().map_err(wrong));
        read.unwrap_or_else(|why| {
            tracing::error!("{why}; GPUs have the policy of the configuration");
            Policies::default()
        })
    }

    /// The events that set the recorded policies of these GPUs.
    pub fn events(&self, gpus: &[GpuUuid]) -> Vec<Event> {
        let recorded = gpus.iter().filter_map(|gpu| self.0.get_key_value(gpu));
        recorded.map(|(gpu, policy)| wish(*gpu, *policy)).collect()
    }

    /// Records a changed policy.
    ///
    /// # Errors
    /// It cannot be recorded: why, and the events that restore the old policies.
    pub fn changed(
        &mut self,
        state: &State,
        policy: Policy,
        was: &[(GpuUuid, Policy)],
    ) -> Result<(), (String, Vec<Event>)> {
        let mut policies = self.clone();
        policies.0.extend(was.iter().map(|(gpu, _)| (*gpu, policy)));
        if let Err(why) = state.keep_policies(&policies.to_string()) {
            let text = format!("{why}; the policy is unchanged, free disk space there");
            let back = was.iter().map(|(gpu, policy)| wish(*gpu, *policy));
            return Err((text, back.collect()));
        }
        *self = policies;
        for (gpu, was) in was {
            tracing::info!(%gpu, %was, %policy, "policy changed");
        }
        Ok(())
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
