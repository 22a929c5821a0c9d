//! `gpuslice policy`: shows and changes the scheduling policy of a GPU while containers run.
//!
//! A change takes effect with the next turn. No container restarts, and past GPU time stays charged.

use crate::admin::Admin;
use crate::node;
use crate::out;
use crate::table::{Gpu, View};
use anyhow::{Result, bail};
use gpuslice_wire::admin::{Answer, Command};
use gpuslice_wire::policy::Policy;
use gpuslice_wire::select::{GpuRef, GpuSelector};
use gpuslice_wire::text::Selector;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `gpuslice policy`.
#[derive(clap::Args)]
#[command(after_help = policies())]
pub struct Options {
    /// GPUs: all, or a list of indices or UUIDs
    #[arg(value_name = "GPU", default_value = "all", value_parser = parse_gpus, add = crate::complete::gpus())]
    gpus: String,
    /// New policy, by name or cGPU's number; omit it to show the current one
    #[arg(value_name = "POLICY", allow_hyphen_values = true, add = crate::complete::policies())]
    policy: Option<Policy>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Runtime directory of the daemon [default: /run/gpuslice as root]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

/// The table of policies, for the help.
fn policies() -> String {
    let row = |policy: &Policy| {
        format!("  {} {policy:10}  {}\n", policy.number(), policy.rules().summary)
    };
    let rows: String = Policy::ALL.iter().map(row).collect();
    format!(
        "Policies, and the part of the GPU's time that a container gets:\n{rows}\
         A container with a --share keeps it under every policy but native, and a --share-limit caps it;\n\
         weights divide the rest. Under fixed a share without a limit is also the limit."
    )
}

fn parse_gpus(text: &str) -> Result<String> {
    match (GpuSelector::parse(text), text.parse::<Policy>()) {
        (Ok(_), _) => Ok(text.to_owned()),
        (Err(_), Ok(policy)) => {
            bail!("{policy} is a policy; name the GPUs before it: gpuslice policy all {policy}")
        }
        (Err(why), Err(_)) => Err(why.into()),
    }
}

/// Runs `gpuslice policy`.
///
/// # Errors
/// No daemon answers, there is no such GPU, or the daemon cannot record the change.
pub fn main(options: &Options) -> Result<ExitCode> {
    let admin = Admin::connect(&node::runtime_dir(options.runtime_dir.as_deref()))?;
    let before = View::of(admin.list()?);
    let chosen = chosen(&before, &options.gpus)?;
    let Some(policy) = options.policy else {
        if options.json {
            return print_json(&chosen, None);
        }
        for line in lines(&chosen) {
            out::line(&line)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let gpu = Selector::new(&options.gpus)?;
    let Answer::Done {} = admin.ask(&Command::SetPolicy { gpu, policy })? else {
        bail!("unexpected answer from the daemon; check that it has the same version")
    };
    if options.json {
        return print_json(&chosen, Some(policy));
    }
    for gpu in chosen {
        let (what, was) = (before.called(gpu.uuid), gpu.policy);
        out::line(&format!("{what}: {was} -> {policy}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The GPUs with their policies; `policy` is the one that they have now, instead of the one that they are shown with.
fn print_json(gpus: &[&Gpu], policy: Option<Policy>) -> Result<ExitCode> {
    let gpu = |gpu: &&Gpu| {
        let now = policy.unwrap_or(gpu.policy);
        json!({
            "index": gpu.index, "uuid": gpu.uuid.to_string(), "simulated": gpu.uuid.is_simulated(), "profile": gpu.uuid.profile(),
            "slices": gpu.slices, "policy": now.name(), "policy_number": now.number(),
            "was": policy.map(|_| gpu.policy.name()),
        })
    };
    let all = json!({ "gpus": gpus.iter().map(gpu).collect::<Vec<_>>() });
    out::line(&out::document("policy", 1, all).to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// The node's GPUs that `text` selects.
fn chosen<'a>(view: &'a View, text: &str) -> Result<Vec<&'a Gpu>> {
    let list = match GpuSelector::parse(text)? {
        GpuSelector::Any | GpuSelector::All => return Ok(view.gpus.iter().collect()),
        GpuSelector::List(list) => list,
    };
    let mut found = Vec::new();
    for entry in list.into_iter().flatten() {
        let is_meant = |gpu: &&Gpu| match entry {
            GpuRef::Index(index) => gpu.index == index.0,
            GpuRef::Uuid(uuid) => gpu.uuid == uuid,
        };
        let Some(gpu) = view.gpus.iter().find(is_meant) else {
            bail!("no GPU on this node matches {text}; gpuslice policy lists its GPUs")
        };
        found.push(gpu);
    }
    Ok(found)
}

fn lines(gpus: &[&Gpu]) -> Vec<String> {
    let head = format!("{:>3} {:<12} {:>6}  UUID", "GPU", "POLICY", "SLICES");
    let row = |gpu: &&Gpu| {
        let policy = format!("{} {}", gpu.policy.number(), gpu.policy);
        let mark = gpu.mark("  ");
        format!("{:>3} {policy:<12} {:>6}  {}{mark}", gpu.index, gpu.slices, gpu.uuid)
    };
    [head].into_iter().chain(gpus.iter().map(row)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::gpu;

    #[test]
    fn gpus_are_found_by_index_and_uuid_and_told() {
        let second = Gpu { policy: Policy::Preemptive, ..gpu(2, 7) };
        let view = View { gpus: vec![gpu(1, 4), second], ..View::default() };
        let index = |text: &str| {
            let found = chosen(&view, text);
            found.map(|all| all.iter().map(|gpu| gpu.index).collect::<Vec<_>>())
        };
        assert_eq!(index("all").ok(), Some(vec![4, 7]));
        assert_eq!(index("7,4").ok(), Some(vec![7, 4]));
        let uuid = view.gpus[1].uuid.to_string();
        assert_eq!(index(&uuid).ok(), Some(vec![7]));
        let none = index("1").expect_err("no such GPU").to_string();
        assert!(none.contains("matches 1;"), "{none}");
        let told = lines(&view.gpus.iter().collect::<Vec<_>>());
        assert!(told[1].contains("4 soft") && told[2].contains("1 preemptive"), "{told:?}");
    }
}
