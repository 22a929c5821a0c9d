//! A slice request: command-line options and the Admit command made from them.

use anyhow::{Context, Result, bail};
use clap::Args;
use gpuslice_wire::admin::{Admission, Command, MemoryAsk};
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::owner::Owner;
use gpuslice_wire::policy::{Class, Gangs};
use gpuslice_wire::select::GpuSelector;
use gpuslice_wire::text::{Name, Selector};
use gpuslice_wire::units::{Bytes, Percent, UnitError, Weight};

/// Options that describe a slice, shared by the commands that create one.
#[derive(Args, Clone, Debug)]
pub struct SliceOptions {
    /// GPUs to use: any, all, or a list of indices or UUIDs
    #[arg(long, value_name = "SEL", default_value = "any", add = crate::complete::gpus())]
    pub gpus: String,
    /// GPU memory cap per GPU, in bytes, KiB, MiB or GiB, or as a part of each GPU's memory: 1/4
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: MemoryAsk,
    /// Pinned host memory cap, for all GPUs together [default: the node's, usually none]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, allow_hyphen_values = true)]
    pub pinned: Option<Bytes>,
    /// Scheduling weight for the time that shares leave, 1 to 1000 [default: 1, or none with --share]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub weight: Option<Weight>,
    /// Share of GPU time in percent, reserved for the container
    #[arg(long, value_name = "PCT", allow_hyphen_values = true)]
    pub share: Option<Percent>,
    /// Limit of GPU time in percent, not below the share [default: none, or the share under fixed]
    #[arg(long, value_name = "PCT", allow_hyphen_values = true)]
    pub share_limit: Option<Percent>,
    /// Scheduling priority: high, normal or best-effort
    #[arg(long, value_name = "CLASS", default_value = "normal")]
    pub priority: Class,
    /// Gang scheduling of the GPUs it uses: auto or never
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub gang: Gangs,
    /// Display name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

/// Parses a size above zero.
pub fn parse_memory(text: &str) -> Result<Bytes, UnitError> {
    match text.parse()? {
        Bytes::ZERO => Err(UnitError::SizeZero),
        bytes => Ok(bytes),
    }
}

impl SliceOptions {
    /// The command that requests this slice under the id `container`. `pid` is a process in the
    /// slice's own control group, or 0 without one.
    ///
    /// # Errors
    /// The selector or the name is malformed.
    pub fn admit(&self, container: &str, pid: u32) -> Result<Command> {
        if let Err(error) = GpuSelector::parse(&self.gpus) {
            bail!("--gpus {}: {error}", self.gpus);
        }
        let name = self.name.as_deref().unwrap_or_default();
        Ok(Command::Admit {
            asked: Admission {
                container: ContainerId::new(container)?,
                name: Name::new(name).with_context(|| "--name")?,
                gpus: Selector::new(&self.gpus).with_context(|| "--gpus")?,
                whole: Selector::EMPTY,
                memory: self.memory,
                weight: self.weight,
                share: self.share,
                share_limit: self.share_limit,
                class: self.priority,
                gang: self.gang,
                pinned: self.pinned,
                pid,
                owner: Owner::default(),
            },
        })
    }
}
