//! The command that helps. Pure.
//!
//! A command that is proposed changes something under the GPU's present policy, and is never the value that is there
//! already: what a weight or a share would do is computed first. Where no command helps, a sentence says why.

use super::is_higher;
use crate::table::{Row, View, WHOLE_PPM};
use gpuslice_wire::limits::WEIGHT_MAX;
use gpuslice_wire::policy::{Class, Policy};
use gpuslice_wire::snapshot::TimeEnforcement;
use gpuslice_wire::units::{Bytes, MIB};
use gpuslice_wire::waits::WaitCause;

/// A larger part of the GPU's time than before is larger by this.
const RISE: f64 = 0.01;

/// `gpuslice set` for the container itself.
pub(super) fn set(now: &View, row: &Row, change: &str) -> String {
    format!("gpuslice set {} {change}", now.handle(&row.container))
}

/// What helps a slice that waits behind `container` on its GPU.
pub(super) fn behind_advice(now: &View, row: &Row, container: &str, cause: WaitCause) -> String {
    let other = now.rows.iter().find(|it| it.container == container && it.gpu == row.gpu);
    match (cause, other) {
        (WaitCause::HigherClass, Some(it)) => set(now, row, &format!("--priority {}", it.class)),
        (WaitCause::LongKernel, Some(it)) => limit(now, row, it),
        (WaitCause::NoDrain, Some(it)) if !is_stopped(it) => NO_PREEMPTION.to_owned(),
        (WaitCause::Queue, _) => larger_part(now, row, &[container]),
        _ => yield_to(now, row, container),
    }
}

/// What gives a slice a larger part of the GPU's time, which it shares with the containers `rivals`: a larger weight or
/// share of its own, or a smaller weight of one of these. Where none counts, the reason for that.
pub(super) fn larger_part(now: &View, row: &Row, rivals: &[&str]) -> String {
    let due = due_if(now, row, rivals, |_| ());
    let rises = |change: &dyn Fn(&mut Row)| due_if(now, row, rivals, change) > due + RISE;
    let weight = row.weight.map_or(1, |weight| (2 * weight).min(WEIGHT_MAX));
    if rises(&|it| it.weight = if it.is_of(row) { Some(weight) } else { it.weight }) {
        return set(now, row, &format!("--weight {weight}"));
    }
    let share = larger_share(now, row, due);
    // A weight that is the default is none beside a share.
    let reserved = |it: &mut Row| {
        if it.is_of(row) {
            (it.share, it.weight) = (Some(share), None);
        }
    };
    if row.share.is_none_or(|was| was < share) && rises(&reserved) {
        return set(now, row, &format!("--share {share}"));
    }
    let others = now.rows.iter().filter(|it| it.gpu == row.gpu && !it.is_of(row));
    for other in others.filter(|it| rivals.contains(&it.container.as_str())) {
        let half = other.weight.map(|weight| (weight / 2).max(1));
        if rises(&|it| it.weight = if it.is_of(other) { half } else { it.weight }) {
            let half = half.unwrap_or(1);
            return format!("gpuslice set {} --weight {half}", now.handle(&other.container));
        }
    }
    let gpu = now.called(row.gpu);
    match unreserved(now, row) {
        0 => {
            format!("the shares on {gpu} are 100 %: lower another container's, or use another GPU")
        }
        _ => "no weight or share gives it more: use another GPU".to_owned(),
    }
}

/// What a slice is due after `change`, if it and the containers `rivals` have work all the time. Caps of policies
/// follow weights and shares, so only limits count.
fn due_if(now: &View, row: &Row, rivals: &[&str], change: impl Fn(&mut Row)) -> f64 {
    let mut then = now.clone();
    for it in &mut then.rows {
        change(it);
        if it.is_of(row) || rivals.contains(&it.container.as_str()) {
            it.runnable = it.runnable.max(1);
        }
        it.cap_ppm = it.share_limit.map_or(WHOLE_PPM, |percent| percent * 10_000);
    }
    then.row(row).map_or(0.0, |row| then.due(row))
}

/// A share halfway between what a slice is due and all of the GPU, within what its limit and other shares allow.
fn larger_share(now: &View, row: &Row, due: f64) -> u32 {
    let halfway = (100.0 * due).round() as u32 / 2 + 50;
    let most = unreserved(now, row) + row.share.unwrap_or(0);
    halfway.min(most).min(row.share_limit.unwrap_or(100))
}

/// The option that lifts a slice's own limit. Under `fixed` a share without a limit is also the limit.
pub(super) fn higher_limit(now: &View, row: &Row) -> String {
    match row.share.filter(|share| *share < 100 && now.policy(row.gpu) == Policy::Fixed) {
        Some(share) => {
            let limit = row.share_limit.unwrap_or(share);
            format!("--share-limit {}", (2 * limit).min(100))
        }
        None => "--share-limit none".to_owned(),
    }
}

/// What no share reserves on any GPU of the container, percent.
fn unreserved(now: &View, row: &Row) -> u32 {
    let of_gpu = |gpu| {
        let shares = now.rows.iter().filter(|it| it.gpu == gpu).filter_map(|it| it.share);
        100u32.saturating_sub(shares.sum())
    };
    let own = now.rows.iter().filter(|it| it.container == row.container);
    own.map(|it| of_gpu(it.gpu)).min().unwrap_or(0)
}

/// What lets a slice have the memory that it was refused last.
pub(super) fn more_memory(now: &View, row: &Row) -> String {
    let more = row.denied_need.saturating_sub(row.denied_left).0;
    let gpu = now.gpus.iter().find(|gpu| gpu.uuid == row.gpu);
    let (total, promised) = gpu.map_or((0, 0), |gpu| (gpu.total.0, gpu.promised.0));
    let free = total.saturating_sub(promised);
    if more <= free {
        let cap = row.cap.0.saturating_add(more).div_ceil(MIB);
        return set(now, row, &format!("--memory {cap}MiB"));
    }
    let here = now.rows.iter().filter(|it| it.gpu == row.gpu);
    let held = here.clone().fold(0u64, |sum, it| sum.saturating_add(it.reserved.0));
    let limit = now.limit(row).limit.0.saturating_add(more).div_ceil(MIB);
    // A limit above the cap needs memory that others leave unused, and a node that promises no more than it has.
    if limit.saturating_mul(MIB) <= total && held.saturating_add(more) <= total && promised <= total
    {
        return set(now, row, &format!("--memory-limit {limit}MiB"));
    }
    let (called, left) = (now.called(row.gpu), Bytes(free));
    let helps = match here.count() {
        0 | 1 => "the program has to use less",
        _ => "lower another container's cap",
    };
    match row.cap.0 >= total {
        true => format!("its cap is all of {called}: the program has to use less"),
        false => format!("{called} has only {left} left to promise: {helps}, or use another GPU"),
    }
}

/// Whether late work of a slice is stopped on the GPU.
fn is_stopped(row: &Row) -> bool {
    row.time_enforcement == TimeEnforcement::Preempt
}

/// The command that helps behind the long kernels of `other`. A lower class does not: whenever the others pause, it
/// gets the GPU, and keeps it for its kernel's length. A limit holds it back then. Only where late work is stopped on
/// the GPU, the class is what counts.
pub(super) fn limit(now: &View, row: &Row, other: &Row) -> String {
    if is_stopped(other) {
        return yield_to(now, row, &other.container);
    }
    let due = (100.0 * now.due(other)).round() as u32;
    let most = match other.share_limit {
        Some(limit) if limit <= due => limit / 2,
        _ if due >= 100 || is_higher(other.class, row.class) => 50,
        _ => due,
    };
    // Not the limit that it has, nor a larger one.
    let most = other.share_limit.filter(|limit| *limit <= most).map_or(most, |limit| limit / 2);
    match most.max(1) {
        most if most >= other.share.unwrap_or(0) && other.share_limit != Some(most) => {
            format!("gpuslice set {} --share-limit {most}", now.handle(&other.container))
        }
        _ => NO_PREEMPTION.to_owned(),
    }
}

/// What helps where no setting of a slice does.
const NO_PREEMPTION: &str = "set preemption = \"probe\" in gpusliced.toml, or use another GPU";

/// The command by which `container` goes behind the one of `row`.
fn yield_to(now: &View, row: &Row, container: &str) -> String {
    let other = now.rows.iter().find(|it| it.container == container);
    let class = other.map_or(Class::Normal, |it| it.class);
    match (class, row.class) {
        (class, mine) if !is_higher(mine, class) && mine != Class::BestEffort => {
            format!("gpuslice set {} --priority best-effort", now.handle(container))
        }
        (_, Class::BestEffort) => set(now, row, "--priority normal"),
        _ => NO_PREEMPTION.to_owned(),
    }
}
