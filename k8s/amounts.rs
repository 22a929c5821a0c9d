//! The amounts of a container on each of its GPUs.
//!
//! A container's limits are sums over its GPUs, and its pod's label says how many these are. Extender, webhook and
//! device plugin ask here, so the device plugin refuses no pod for amounts that the others let pass.

use crate::names::{COUNT, ResourceNames};
use crate::place::CORES;

/// GPUs of one container, at most: as many as a claim has.
pub const COUNT_MAX: u64 = gpuslice_wire::limits::GPUS_MAX as u64;

/// What a container's limits say, as sums over its GPUs.
#[derive(Debug, Clone, Copy)]
pub struct Limits<'a> {
    pub container: &'a str,
    /// Units.
    pub memory: u64,
    /// Percent.
    pub cores: u64,
}

/// What a container asks for on each of its GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amounts {
    /// Units, at least one.
    pub memory: u64,
    /// Percent of the GPU's time; 0: no share is reserved.
    pub cores: u32,
}

/// Why no claim can have a container's amounts. The sentence is what a user reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadAmounts {
    #[error(
        "the container {container} asks for {cores} and for no {memory}, and a share of compute needs \
         memory: add a limit for {memory}"
    )]
    NoMemory { container: String, cores: String, memory: String },
    #[error("the pod's label {COUNT} is {0:?}, and must be a number from 1 to {COUNT_MAX}")]
    Count(String),
    #[error(
        "the container {container} asks for {amount} of {resource} on {count} GPUs by the pod's label \
         {COUNT}, and {count} must divide it"
    )]
    Uneven { container: String, amount: u64, resource: String, count: u64 },
    #[error(
        "the container {container} asks for {cores} percent of compute on one GPU: ask for at most {CORES}"
    )]
    Cores { container: String, cores: u64 },
}

/// The number of GPUs of each container of a pod, from the pod's label.
///
/// # Errors
/// [`BadAmounts::Count`].
pub fn count(label: Option<&str>) -> Result<u64, BadAmounts> {
    let Some(text) = label else {
        return Ok(1);
    };
    let count = text.parse().ok().filter(|count| (1..=COUNT_MAX).contains(count));
    count.ok_or_else(|| BadAmounts::Count(short(text)))
}

/// The amounts on each of `count` GPUs.
///
/// # Errors
/// [`BadAmounts`]; a container that asks for neither memory nor compute is one without memory.
pub fn on_each(
    limits: Limits<'_>,
    count: u64,
    names: &ResourceNames,
) -> Result<Amounts, BadAmounts> {
    let container = || short(limits.container);
    if limits.memory == 0 {
        let (cores, memory) = (names.cores.clone(), names.memory.clone());
        return Err(BadAmounts::NoMemory { container: container(), cores, memory });
    }
    for (amount, resource) in [(limits.memory, &names.memory), (limits.cores, &names.cores)] {
        if !amount.is_multiple_of(count) {
            let (container, resource) = (container(), resource.clone());
            return Err(BadAmounts::Uneven { container, amount, resource, count });
        }
    }
    match limits.cores / count {
        cores if cores > u64::from(CORES) => {
            Err(BadAmounts::Cores { container: container(), cores })
        }
        cores => Ok(Amounts { memory: limits.memory / count, cores: cores as u32 }),
    }
}

/// A text that its writer chose, with no more than what Kubernetes lets names and labels have.
fn short(text: &str) -> String {
    text.chars().take(63).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(count: u64, memory: u64, cores: u64) -> Result<Amounts, BadAmounts> {
        on_each(Limits { container: "c", memory, cores }, count, ResourceNames::usual())
    }

    #[test]
    fn amounts_are_those_of_one_gpu() {
        assert_eq!(on(1, 3, 0), Ok(Amounts { memory: 3, cores: 0 }));
        assert_eq!(on(2, 6, 200), Ok(Amounts { memory: 3, cores: 100 }));
        assert_eq!(on(16, u64::MAX - 15, 16), Ok(Amounts { memory: u64::MAX / 16, cores: 1 }));
    }

    #[test]
    fn what_no_claim_has_is_named_with_its_container() {
        let names = ResourceNames::usual();
        let (cores, memory) = (names.cores.clone(), names.memory.clone());
        let c = || "c".to_owned();
        for asked in [0, 20] {
            let (cores, memory) = (cores.clone(), memory.clone());
            assert_eq!(
                on(1, 0, asked),
                Err(BadAmounts::NoMemory { container: c(), cores, memory })
            );
        }
        let uneven = |amount, resource: &str, count| {
            let resource = resource.to_owned();
            Err(BadAmounts::Uneven { container: c(), amount, resource, count })
        };
        assert_eq!(on(2, 3, 0), uneven(3, &memory, 2));
        assert_eq!(on(2, 4, 5), uneven(5, &cores, 2));
        assert_eq!(on(1, 1, 101), Err(BadAmounts::Cores { container: c(), cores: 101 }));
        assert_eq!(on(2, 2, 202), Err(BadAmounts::Cores { container: c(), cores: 101 }));
    }

    #[test]
    fn a_count_is_from_one_to_the_gpus_of_a_claim() {
        assert_eq!(count(None), Ok(1));
        assert_eq!(["1", "16"].map(|text| count(Some(text))), [Ok(1), Ok(16)]);
        for text in ["0", "17", "-1", "", " 2", "two", "18446744073709551616"] {
            assert_eq!(count(Some(text)), Err(BadAmounts::Count(text.to_owned())));
        }
        let BadAmounts::Count(said) = count(Some(&"9".repeat(1000))).unwrap_err() else {
            panic!("another error");
        };
        assert_eq!(said.len(), 63);
    }
}
