//! Real use of a node's GPUs: what its agent tells about them, in an annotation of the node.
//!
//! The API server knows what pods asked for, and no figure of a GPU. So the agent writes one short text about its
//! node's GPUs, and inspect shows it on request. Amounts are in MiB, so that the text stays short.

use crate::ledger::Rows;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The node's annotation.
pub const ANNOTATION: &str = "gpuslice.io/usage";
/// Bytes of the annotation that are read, at most.
const TEXT_MAX: usize = 16 << 10;
/// Use is rounded up to this many MiB, so that small changes are no news.
const STEP_MIB: u64 = 64;

/// One GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Gpu {
    pub total_mib: u64,
    /// By claims and slices, whether they use it or not.
    pub promised_mib: u64,
    /// By processes. A claim on several GPUs is divided evenly among them.
    pub used_mib: u64,
    /// Percent of its time that is promised.
    pub cores: u32,
    pub claims: u64,
}

/// By index.
pub type Usage = BTreeMap<u32, Gpu>;

/// The use that the ledger tells.
#[must_use]
pub fn of_rows(rows: &Rows) -> Usage {
    let gpu = |facts: &gpuslice_wire::node::GpuFacts| {
        let claims = || rows.claims.iter().filter(|it| it.gpus.contains(&facts.number));
        let own = rows.own.iter().filter(|it| it.gpus.contains(&facts.number));
        let part = |used: u64, gpus: usize| used / gpus.max(1) as u64;
        let used: u64 = claims().map(|it| part(it.used.0, it.gpus.len())).sum::<u64>()
            + own.map(|it| part(it.used.0, it.gpus.len())).sum::<u64>();
        let used_mib = (used >> 20).next_multiple_of(STEP_MIB);
        let (total_mib, promised_mib) = (facts.total.0 >> 20, facts.promised.0 >> 20);
        let (cores, claims) = (facts.share_promised, claims().count() as u64);
        let used_mib = used_mib.min(total_mib);
        (facts.index.0, Gpu { total_mib, promised_mib, used_mib, cores, claims })
    };
    rows.gpus.iter().map(gpu).collect()
}

/// The annotation's text.
#[must_use]
pub fn text(usage: &Usage) -> String {
    serde_json::json!(usage).to_string()
}

/// Reads an annotation. One that is malformed tells nothing.
#[must_use]
pub fn parse(text: &str) -> Usage {
    match text.len() <= TEXT_MAX {
        true => serde_json::from_str(text).unwrap_or_default(),
        false => Usage::default(),
    }
}
