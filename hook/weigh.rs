//! cGPU's rule that a weight is a wish for weights: a container with a weight above 1 makes a GPU
//! whose policy is preemptive (1) a weighted one (2), for all its containers.
//!
//! Only that one step: a policy that an administrator chose for other reasons stays.

use crate::error::Error;
use crate::grant::Asked;
use gpuslice_wire::admin::{Answer, Command};
use gpuslice_wire::ids::{ContainerId, GpuUuid};
use gpuslice_wire::policy::Policy;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::text::Selector;
use std::path::Path;
use std::time::Instant;

/// Makes the container's GPUs weighted where they are preemptive.
///
/// # Errors
/// [`Error::Daemon`] without an answer in time, [`Error::Denied`] with its words.
pub(crate) fn weigh(runtime_dir: &Path, container: ContainerId, by: Instant) -> Result<(), Error> {
    let listing = Asked::send(runtime_dir, &Command::List {}, by)?;
    let mut rows = Vec::new();
    loop {
        match listing.next()? {
            Snapshot::End { .. } => break,
            row => rows.push(row),
        }
    }
    let Some(gpu) = preemptive(&rows, container) else {
        return Ok(());
    };
    let policy = Policy::Weighted;
    match Asked::send(runtime_dir, &Command::SetPolicy { gpu, policy }, by)?.answer()? {
        Answer::Denied { text, .. } => Err(Error::Denied(text.to_string())),
        _ => Ok(()),
    }
}

/// The container's preemptive GPUs, if there are any.
fn preemptive(rows: &[Snapshot], container: ContainerId) -> Option<Selector> {
    let is_preemptive = |wanted: GpuUuid| {
        let mut rows = rows.iter();
        rows.any(|row| {
            matches!(row, Snapshot::Gpu { uuid, policy: Policy::Preemptive, .. } if *uuid == wanted)
        })
    };
    let own = rows.iter().filter_map(|row| match row {
        Snapshot::Slice {
            container: whose,
            gpu,
            ..
        } if *whose == container => Some(*gpu),
        _ => None,
    });
    let named: Vec<String> = own
        .filter(|gpu| is_preemptive(*gpu))
        .map(|gpu| gpu.to_string())
        .collect();
    // All of a node's GPUs fit in a selector.
    (!named.is_empty())
        .then(|| Selector::new(&named.join(",")).ok())
        .flatten()
}
