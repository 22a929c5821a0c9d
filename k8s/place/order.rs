//! The order in which GPUs are tried: binpack fills the fullest GPU first, spread the emptiest.

use super::links::Scores;
use super::{Ask, Gpu, first_of};
use gpuslice_wire::units::Bytes;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::str::FromStr;

/// How shares are distributed over a node's GPUs, as the node's label `ack.node.gpu.placement` names it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Placement {
    /// The smallest sufficient room, so that whole GPUs stay free.
    #[default]
    Binpack,
    /// The largest room, so that shares have few neighbours.
    Spread,
}

impl FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Placement, String> {
        match text {
            "binpack" => Ok(Placement::Binpack),
            "spread" => Ok(Placement::Spread),
            _ => Err(format!("{text:?} is no placement: binpack and spread are")),
        }
    }
}

/// All positions, the GPU that a share should try first at the front.
///
/// Among GPUs with equal room, binpack prefers one that has shares already, then one of an island with shares, so
/// that whole GPUs and whole islands stay free. The last criterion is the position, so that the order is stable.
#[must_use]
pub fn order(gpus: &[Gpu], placement: Placement) -> Vec<usize> {
    let used = |gpu: &Gpu| gpu.used.shares > 0;
    let islands: BTreeSet<&str> =
        gpus.iter().filter(|gpu| used(gpu)).filter_map(|gpu| gpu.island.as_deref()).collect();
    let fresh = |gpu: &Gpu| !gpu.island.as_deref().is_some_and(|island| islands.contains(island));
    let mut positions: Vec<usize> = (0..gpus.len()).collect();
    match placement {
        Placement::Binpack => positions.sort_by_key(|&at| {
            let gpu = &gpus[at];
            (gpu.free(), !used(gpu), fresh(gpu))
        }),
        Placement::Spread => positions.sort_by_key(|&at| {
            let gpu = &gpus[at];
            (Reverse::<Bytes>(gpu.free()), gpu.used.shares, gpu.used.cores)
        }),
    }
    positions
}

/// The GPUs, by position, that an ask gets where the node chooses. `None`: no set of GPUs fits.
#[must_use]
pub fn choose(gpus: &[Gpu], placement: Placement, ask: &Ask) -> Option<Vec<usize>> {
    first_of(gpus, &order(gpus, placement), ask)
}

/// The same where the scores of pairs are known: of several GPUs, the fitting set that is connected best.
#[must_use]
pub fn choose_linked(
    gpus: &[Gpu],
    placement: Placement,
    ask: &Ask,
    scores: &Scores,
) -> Option<Vec<usize>> {
    if ask.count < 2 || !scores.matter() {
        return choose(gpus, placement, ask);
    }
    let mut fitting = order(gpus, placement);
    fitting.retain(|&at| gpus[at].fits(ask));
    scores.best(&fitting, &[], ask.count)
}
