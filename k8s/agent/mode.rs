//! Which program offers a node's GPUs, and how.

use crate::names;
use anyhow::{Result, bail};
use std::collections::BTreeMap;

/// How the agent offers the GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// As extended resources for memory and compute
    DevicePlugin,
    /// As an extended resource for memory alone
    Cgpu,
    /// As an extended resource for memory that places containers and caps none
    Share,
    /// As an extended resource for whole GPUs, chosen by how well they are connected
    Topology,
    /// By dynamic resource allocation with consumable capacity
    Dra,
    /// Not at all
    Off,
}

/// The mode that a node's labels say. A node without a label is offered, since the agent was put there.
///
/// # Errors
/// The value is none that is known.
pub fn of_labels(labels: &BTreeMap<String, String>) -> Result<Mode> {
    let ours = labels.get(names::OUR_MODE).map(|value| (names::OUR_MODE, value));
    let ack = || labels.get(names::MODE).map(|value| (names::MODE, value));
    let Some((key, value)) = ours.or_else(ack) else {
        return Ok(Mode::DevicePlugin);
    };
    Ok(match value.as_str() {
        "device-plugin" | "core_mem" => Mode::DevicePlugin,
        "cgpu" => Mode::Cgpu,
        "share" => Mode::Share,
        "topology" => Mode::Topology,
        "dra" => Mode::Dra,
        // These are offered by NVIDIA's plugin, or by MPS or MIG.
        "off" | "default" | "mps" | "mig" | "disabled" => Mode::Off,
        other => bail!(
            "the node's label {key} is {other:?}; device-plugin, dra, share, cgpu, core_mem, topology and off are known"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_says_who_offers() {
        let of = |pairs: &[(&str, &str)]| {
            let labels = pairs.iter().map(|it| (it.0.to_owned(), it.1.to_owned())).collect();
            of_labels(&labels).map_err(|error| error.to_string())
        };
        assert_eq!(of(&[]), Ok(Mode::DevicePlugin));
        assert_eq!(of(&[("ack.node.gpu.schedule", "core_mem")]), Ok(Mode::DevicePlugin));
        assert_eq!(of(&[("ack.node.gpu.schedule", "cgpu")]), Ok(Mode::Cgpu));
        assert_eq!(of(&[("ack.node.gpu.schedule", "share")]), Ok(Mode::Share));
        assert_eq!(of(&[("gpuslice.io/mode", "dra")]), Ok(Mode::Dra));
        assert_eq!(of(&[("ack.node.gpu.schedule", "topology")]), Ok(Mode::Topology));
        let both = [("ack.node.gpu.schedule", "default"), ("gpuslice.io/mode", "device-plugin")];
        assert_eq!(of(&both), Ok(Mode::DevicePlugin), "ours is nearer");
        assert!(of(&[("gpuslice.io/mode", "maybe")]).unwrap_err().contains("\"maybe\""));
    }
}
