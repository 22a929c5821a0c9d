//! What the tiers mean, in words, and in which a running daemon's slices are.

use super::{Check, there};
use crate::table::{Row, View, tier_name, time_tier_name};
use gpuslice_wire::snapshot::{Tier, TimeTier};

/// Who holds a cap.
pub fn words(tier: Tier) -> String {
    let who = match tier {
        Tier::Shim => "the shim holds caps",
        Tier::Measured => "the shim holds caps, NVML's measures are charged",
        Tier::Driver => "the driver holds caps",
    };
    format!("{}: {who}", tier_name(tier))
}

/// How a container is kept to its turns.
pub fn time_words(tier: TimeTier) -> String {
    let how = match tier {
        TimeTier::Turns => "what is in flight after a turn is waited for",
        TimeTier::Slices => {
            "what is late is waited for, what overlaps the hardware divides by weight"
        }
        TimeTier::Stops => "what is late is stopped on the GPU",
    };
    format!("{}: {how}", time_tier_name(tier))
}

/// The slices of a running daemon: who really holds the cap of each.
pub fn of_slices(view: &View) -> Vec<Check> {
    let of = |row: &Row| {
        let over = if row.is_over() {
            ", held above the cap"
        } else {
            ""
        };
        let (caps, turns) = (words(row.tier), time_words(row.kept.tier));
        let slices = slice_words(row.kept.slice_us, row.kept.slice_changes);
        let gpu = view.called(row.gpu);
        let found = format!("{gpu}: {caps}{over}; {turns}{slices}");
        there(&format!("slice {}", row.name), found)
    };
    view.rows.iter().map(of).collect()
}

/// The hardware's time slice that was given, and whether it stayed.
fn slice_words(us: u64, changes: u64) -> String {
    let kept = match changes {
        0 => String::new(),
        times => format!("; it set others itself, {times} times: look what runs in it"),
    };
    match us {
        0 => kept,
        us => format!(", time slices of {us} µs{kept}"),
    }
}
