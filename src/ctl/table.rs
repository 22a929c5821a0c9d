//! A node's slices as people and programs read them. Pure: two snapshots in, lines or JSON out.
//!
//! A snapshot holds counters; a share is the growth of a slice's GPU time between two of them,
//! divided by the time between them. What a slice *wants* is what it is due if all that have work
//! now keep having work: its hard share, or its weight's part of what hard shares leave.

use gpuslice_wire::ids::{GpuUuid, Lane};
use gpuslice_wire::snapshot::{Snapshot, Tier};
use gpuslice_wire::units::Bytes;
use serde_json::{Value, json};
use std::fmt::Write;

/// One slice of one GPU.
#[derive(Clone, Debug)]
pub struct Row {
    /// Container id.
    pub container: String,
    /// Name for people; the id where there is none.
    pub name: String,
    /// Which GPU.
    pub gpu: GpuUuid,
    /// The same within the container.
    pub lane: Lane,
    /// Memory cap.
    pub cap: Bytes,
    /// Reserved, unused credit included.
    pub reserved: Bytes,
    /// What NVML shows beyond what was asked for.
    pub residual: Bytes,
    /// Held by its processes.
    pub used: Bytes,
    /// Highest `used`.
    pub peak: Bytes,
    /// Refused allocations.
    pub denied: u64,
    /// Size and rest of the last of them.
    pub last_denied: (Bytes, Bytes),
    /// Who holds the cap.
    pub tier: Tier,
    /// Pinned host memory, of all the container's GPUs together.
    pub pinned: Bytes,
    /// The cap on that.
    pub pinned_cap: Option<Bytes>,
    /// Weight.
    pub weight: u32,
    /// Hard share in percent.
    pub share: Option<u32>,
    /// High priority.
    pub high: bool,
    /// Attached processes.
    pub clients: u32,
    /// Has work now.
    pub wanting: bool,
    /// GPU time so far, ns.
    pub gpu_ns: u64,
    /// Time spent waiting, ns.
    pub wait_ns: u64,
    /// Turns so far.
    pub turns: u64,
    /// Launches so far.
    pub launches: u64,
}

/// A snapshot in two lists.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// CLOCK_MONOTONIC ns.
    pub now_ns: u64,
    /// GPUs: UUID, NVML index, physical memory, promised memory.
    pub gpus: Vec<(GpuUuid, u32, Bytes, Bytes)>,
    /// Slices.
    pub rows: Vec<Row>,
}

impl Row {
    /// Holds more than its cap, which was lowered, or was passed by what nobody asks for.
    pub fn is_over(&self) -> bool {
        u128::from(self.used.0) + u128::from(self.residual.0) > u128::from(self.cap.0)
    }

    /// The last refusal in words, if there was one.
    fn refusal(&self) -> Option<String> {
        let (need, left) = self.last_denied;
        (need > Bytes::ZERO).then(|| format!("{need} with {left} left"))
    }
}

/// A tier as people and programs read it.
pub const fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::Shim => "M0",
        Tier::Measured => "M1",
        Tier::Driver => "M3",
    }
}

impl View {
    /// Sorts a snapshot's frames into lists.
    pub fn of((now_ns, frames): (u64, Vec<Snapshot>)) -> View {
        let mut view = View {
            now_ns,
            ..View::default()
        };
        for frame in frames {
            match frame {
                Snapshot::Gpu {
                    uuid,
                    index,
                    total,
                    promised,
                    slices: _,
                } => {
                    view.gpus.push((uuid, index.0, total, promised));
                }
                slice @ Snapshot::Slice { .. } => view.rows.extend(row(slice)),
                Snapshot::End { .. } => {}
            }
        }
        view
    }

    /// NVML index of a GPU.
    pub fn index(&self, gpu: GpuUuid) -> u32 {
        self.gpus
            .iter()
            .find(|(uuid, ..)| *uuid == gpu)
            .map_or(u32::MAX, |found| found.1)
    }

    /// The part of its GPU, 0..=1, that a slice is due among those that have work.
    pub fn due(&self, row: &Row) -> f64 {
        if let Some(percent) = row.share {
            return f64::from(percent) / 100.0;
        }
        let peers = self.rows.iter().filter(|peer| {
            peer.gpu == row.gpu && (peer.wanting || peer.container == row.container)
        });
        let (mut weights, mut left) = (0.0, 1.0);
        for peer in peers {
            match peer.share {
                Some(percent) => left -= f64::from(percent) / 100.0,
                None => weights += f64::from(peer.weight),
            }
        }
        f64::max(left, 0.0) * f64::from(row.weight) / f64::max(weights, 1.0)
    }

    /// The part of its GPU a slice got since `before`.
    pub fn got(&self, row: &Row, before: &View) -> f64 {
        let same = |old: &&Row| old.container == row.container && old.gpu == row.gpu;
        let old = before.rows.iter().find(same).map_or(0, |old| old.gpu_ns);
        let span = self.now_ns.saturating_sub(before.now_ns).max(1);
        row.gpu_ns.saturating_sub(old) as f64 / span as f64
    }
}

fn row(slice: Snapshot) -> Option<Row> {
    let Snapshot::Slice {
        container,
        name,
        gpu,
        lane,
        cap,
        reserved,
        residual,
        used,
        peak,
        denied,
        denied_need,
        denied_left,
        tier,
        pinned,
        pinned_cap,
        weight,
        share,
        high,
        clients,
        wanting,
        gated: _,
        gpu_ns,
        wait_ns,
        turns,
        launches,
    } = slice
    else {
        return None;
    };
    let container = container.to_string();
    let name = if name.is_empty() {
        container.clone()
    } else {
        name.to_string()
    };
    Some(Row {
        container,
        name,
        gpu,
        lane,
        cap,
        reserved,
        residual,
        used,
        peak,
        denied,
        last_denied: (denied_need, denied_left),
        tier,
        pinned,
        pinned_cap,
        weight: weight.get(),
        share: share.map(|percent| percent.get()),
        high,
        clients,
        wanting: wanting != 0,
        gpu_ns,
        wait_ns,
        turns,
        launches,
    })
}

/// The table as lines, a header first. Shares are taken between the two views. `wide` tells of the
/// last refusal too.
pub fn lines(before: &View, now: &View, wide: bool) -> Vec<String> {
    let mut all = vec![format!(
        "{:<16} {:>3} {:>9} {:>9} {:>8} {:>4} {:>7} {:>6} {:>7} {:>7} {:>5}{}",
        "NAME",
        "GPU",
        "CAP",
        "USED",
        "RESIDUAL",
        "TIER",
        "DENIED",
        "WEIGHT",
        "WANTED",
        "GOT",
        "PROCS",
        if wide { "  LAST REFUSED" } else { "" }
    )];
    for row in &now.rows {
        let mut line = String::new();
        let weight = match (row.share, row.high) {
            (Some(percent), _) => format!("{percent}%"),
            (None, true) => "high".to_owned(),
            (None, false) => row.weight.to_string(),
        };
        // Writing to a String cannot fail.
        let _ = write!(
            line,
            "{:<16.16} {:>3} {:>9} {:>9} {:>8} {:>4} {:>7} {:>6} {:>6.1}% {:>6.1}% {:>5}",
            row.name,
            now.index(row.gpu),
            row.cap.to_string(),
            row.used.to_string(),
            row.residual.to_string(),
            tier_name(row.tier),
            row.denied,
            weight,
            100.0 * now.due(row),
            100.0 * now.got(row, before),
            row.clients,
        );
        if wide {
            let _ = write!(line, "  {}", row.refusal().as_deref().unwrap_or("never"));
        }
        if row.is_over() {
            line.push_str("  over");
        }
        all.push(line);
    }
    all
}

/// A snapshot as one JSON object; sizes in bytes, times in ns.
pub fn json(view: &View) -> Value {
    let gpu = |(uuid, index, total, promised): &(GpuUuid, u32, Bytes, Bytes)| json!({ "uuid": uuid.to_string(), "index": index, "memory_total": total.0, "memory_promised": promised.0 });
    let slice = |row: &Row| {
        json!({
            "container": row.container, "name": row.name, "gpu": row.gpu.to_string(),
            "memory_cap": row.cap.0, "memory_reserved": row.reserved.0, "memory_used": row.used.0,
            "memory_residual": row.residual.0, "memory_over": row.is_over(),
            "memory_peak": row.peak.0, "lane": row.lane.0, "tier": tier_name(row.tier),
            "pinned": row.pinned.0, "pinned_cap": row.pinned_cap.map(|cap| cap.0),
            "denied": row.denied, "denied_need": row.last_denied.0.0,
            "denied_left": row.last_denied.1.0, "weight": row.weight,
            "share": row.share, "high": row.high, "clients": row.clients, "wanting": row.wanting,
            "gpu_ns": row.gpu_ns, "wait_ns": row.wait_ns, "turns": row.turns,
            "launches": row.launches,
        })
    };
    json!({
        "now_ns": view.now_ns,
        "gpus": view.gpus.iter().map(gpu).collect::<Vec<_>>(),
        "slices": view.rows.iter().map(slice).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A slice that has been refused three times.
    pub fn slice(name: &str, weight: u32, share: Option<u32>, wanting: bool, gpu_ns: u64) -> Row {
        Row {
            container: name.into(),
            name: name.into(),
            gpu: GpuUuid([1; 16]),
            lane: Lane(0),
            cap: Bytes(1 << 30),
            reserved: Bytes(0),
            residual: Bytes(0),
            last_denied: (Bytes(3 << 20), Bytes(1 << 20)),
            tier: Tier::Measured,
            pinned: Bytes(0),
            pinned_cap: None,
            used: Bytes(0),
            peak: Bytes(0),
            denied: 3,
            weight,
            share,
            high: false,
            clients: 1,
            wanting,
            gpu_ns,
            wait_ns: 0,
            turns: 0,
            launches: 0,
        }
    }

    #[test]
    fn what_is_due_counts_hard_shares_first() {
        let rows = vec![
            slice("a", 1, None, true, 0),
            slice("b", 3, None, true, 0),
            slice("c", 1, Some(20), true, 0),
            slice("idle", 9, None, false, 0),
        ];
        let view = View {
            rows,
            ..View::default()
        };
        let due: Vec<_> = view
            .rows
            .iter()
            .map(|row| (view.due(row) * 100.0).round())
            .collect();
        assert_eq!(due, [20.0, 60.0, 20.0, 55.0]); // the last: what it would get if it woke now
    }

    #[test]
    fn what_was_got_is_growth_over_time() {
        let before = View {
            now_ns: 1_000,
            rows: vec![slice("a", 1, None, true, 500)],
            ..View::default()
        };
        let now = View {
            now_ns: 2_000,
            rows: vec![slice("a", 1, None, true, 750)],
            ..View::default()
        };
        assert!((now.got(&now.rows[0], &before) - 0.25).abs() < 1e-9);
        assert!(lines(&before, &now, false)[1].contains(" 25.0%"));
        assert_eq!(json(&now)["slices"][0]["denied"], 3);
    }

    #[test]
    fn a_slice_above_its_cap_and_its_last_refusal_are_told() {
        let mut row = slice("a", 1, None, true, 0);
        (row.used, row.residual) = (row.cap, Bytes(1));
        let view = View {
            rows: vec![slice("b", 1, None, true, 0), row],
            ..View::default()
        };
        let told = lines(&view, &view, true);
        assert!(
            told[0].ends_with("LAST REFUSED") && told[1].contains(" M1 "),
            "{told:?}"
        );
        assert!(told[1].ends_with("  3MiB with 1MiB left"), "{told:?}");
        assert!(told[2].ends_with("left  over"), "{told:?}");
        assert!(lines(&view, &view, false)[1].ends_with(" 1"));
        let told = json(&view);
        assert_eq!(told["slices"][1]["memory_over"], true);
        assert_eq!(told["slices"][0]["tier"], "M1");
        assert_eq!(told["slices"][0]["denied_need"], 3 << 20);
    }
}
