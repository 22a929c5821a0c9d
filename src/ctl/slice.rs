//! What a person asks for when asking for a slice, as options and as an Admit command.

use anyhow::{Context, Result, bail};
use clap::Args;
use gpuslice_wire::admin::{Command, MemoryAsk};
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::policy::{Class, Gangs};
use gpuslice_wire::select::GpuSelector;
use gpuslice_wire::text::{Name, Selector};
use gpuslice_wire::units::{Bytes, Percent, UnitError, Weight};

/// The slice's own options, shared by the commands that make one.
#[derive(Args, Clone, Debug)]
pub struct SliceOptions {
    /// Which GPUs: any, all, or a list of indices or UUIDs
    #[arg(long, value_name = "SEL", default_value = "any")]
    pub gpus: String,
    /// Cap on GPU memory, per GPU: bytes or KiB, MiB, GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, allow_hyphen_values = true)]
    pub memory: Bytes,
    /// Cap on the host memory that it pins for its GPUs [default: the node's, mostly none]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, allow_hyphen_values = true)]
    pub pinned: Option<Bytes>,
    /// Weight of the share of GPU time, 1 to 1000
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        allow_hyphen_values = true
    )]
    pub weight: Weight,
    /// Share of GPU time in percent: reserved, and no more, also when alone
    #[arg(
        long,
        value_name = "PCT",
        conflicts_with = "weight",
        allow_hyphen_values = true
    )]
    pub share: Option<Percent>,
    /// Who goes before whom: high, normal, or best-effort
    #[arg(long, value_name = "CLASS", default_value = "normal")]
    pub priority: Class,
    /// Whether its GPUs take turns together once it uses several: auto, or never
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub gang: Gangs,
    /// A name for people
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

/// A size above zero.
pub fn parse_memory(text: &str) -> Result<Bytes, UnitError> {
    match text.parse()? {
        Bytes::ZERO => Err(UnitError::SizeZero),
        bytes => Ok(bytes),
    }
}

impl SliceOptions {
    /// The command that asks the daemon for this slice under the id `container`. `pid` is a process
    /// in the control group that is the slice's own; 0 if it has none.
    ///
    /// # Errors
    /// The selector or the name is malformed.
    pub fn admit(&self, container: &str, pid: u32) -> Result<Command> {
        if let Err(error) = GpuSelector::parse(&self.gpus) {
            bail!("--gpus {}: {error}", self.gpus);
        }
        let name = self.name.as_deref().unwrap_or_default();
        Ok(Command::Admit {
            container: ContainerId::new(container)?,
            name: Name::new(name).with_context(|| "--name")?,
            gpus: Selector::new(&self.gpus).with_context(|| "--gpus")?,
            whole: Selector::EMPTY,
            memory: MemoryAsk::Exactly(self.memory),
            weight: self.weight,
            share: self.share,
            class: self.priority,
            gang: self.gang,
            pinned: self.pinned,
            pid,
        })
    }
}
