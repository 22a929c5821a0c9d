//! `kubectl inspect cgpu` and `kubectl inspect gpushare`: the cluster's GPUs and what pods have of them.
//!
//! Scripts read these tables, so every byte is gpushare's own, with four differences. Nodes have a stable
//! order. A GPU that a node lacks counts as unknown, where gpushare drops it. A GPU with 141 GiB is not taken for
//! MiB. On the node itself, a line after the table names each GPU that is not healthy. Columns that gpushare
//! lacks appear on request only.

pub mod columns;
pub mod details;
pub mod json;
pub mod local;
pub mod nodes;
pub mod summary;
pub mod usage;

use crate::api::kubectl::Kubectl;
use crate::ledger::socket;
use crate::plugin::devices::Unit;
use anyhow::Result;
use gpuslice_host::layout::{NODE_DIR, NODE_SOCKET};
use nodes::Cluster;
use std::path::PathBuf;

/// Columns that gpushare lacks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extra {
    /// Percent of compute; claims and memory in use, as the node's agent tells them.
    pub more: bool,
}

/// The form of the output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// gpushare's table
    #[default]
    Table,
    /// The table with cores, claims and memory in use
    Wide,
    /// One object
    Json,
}

/// Show the cluster's shared GPUs and what pods have of them
#[derive(Debug, clap::Parser)]
#[command(name = "kubectl-inspect-cgpu", version)]
pub struct Options {
    /// Show this node only
    node: Option<String>,
    /// Ask the daemon of this machine instead of the API server
    #[arg(long, conflicts_with_all = ["node", "kubeconfig", "context"])]
    local: bool,
    /// With --local, the daemon's socket for agents [default: /run/gpuslice/node.sock]
    #[arg(long, value_name = "FILE", requires = "local")]
    node_socket: Option<PathBuf>,
    /// With --local, the memory of one unit: GiB, MiB or a size
    #[arg(long, value_name = "UNIT", default_value = "GiB", requires = "local")]
    memory_unit: Unit,
    /// List the pods of each node
    #[arg(short, long)]
    details: bool,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Configuration of kubectl [default: as kubectl itself]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<String>,
    /// Context in kubectl's configuration
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

/// The program's text for the user.
///
/// # Errors
/// The API server or the daemon cannot be asked, or the node does not exist.
pub fn run(options: &Options) -> Result<String> {
    let given = |name: &str, value: &Option<String>| {
        value.as_ref().map(|value| format!("--{name}={value}"))
    };
    let all = [given("kubeconfig", &options.kubeconfig), given("context", &options.context)];
    let kubectl = Kubectl { program: None, options: all.into_iter().flatten().collect() };
    let cluster = match options.local {
        true => local(options)?,
        false => read(&kubectl, options.node.as_deref())?,
    };
    let extra = Extra { more: options.output == Format::Wide };
    Ok(match (options.output, options.details) {
        (Format::Json, _) => format!("{:#}\n", json::of(&cluster)),
        (_, true) => details::render(&cluster, extra),
        (_, false) => summary::render(&cluster, extra),
    })
}

fn local(options: &Options) -> Result<Cluster> {
    let usual = || PathBuf::from(NODE_DIR).join(NODE_SOCKET);
    let rows = socket::read(&options.node_socket.clone().unwrap_or_else(usual))?;
    let (name, address) = local::identity();
    Ok(local::cluster(&rows, name, address, options.memory_unit))
}

fn read(kubectl: &Kubectl, node: Option<&str>) -> Result<Cluster> {
    use crate::api::objects::List;
    let (nodes, pods) = match node {
        None => (kubectl.list("/api/v1/nodes")?, "/api/v1/pods".to_owned()),
        Some(name) => {
            // A name with other characters is none, and would be another path.
            let valid = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
            anyhow::ensure!(
                !name.is_empty() && name.chars().all(valid),
                "{name:?} is no node's name"
            );
            let node = kubectl.get(&format!("/api/v1/nodes/{name}"))?;
            (List::of(vec![node]), format!("/api/v1/pods?fieldSelector=spec.nodeName={name}"))
        }
    };
    Ok(Cluster::of(&nodes, &kubectl.list(&pods)?))
}

/// A part of a whole in percent, rounded down; 0 of nothing.
fn percent(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100).checked_div(whole).unwrap_or(0)
}

#[cfg(test)]
mod tests;
