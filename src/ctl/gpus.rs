//! `gpuslice gpus`: one row for each GPU of this node.

use crate::elsewhere;
use crate::out;
use crate::table::{Gpu, View};
use crate::text::cut;
use anyhow::Result;
use gpuslice_wire::node::{Health, HealthState};
use gpuslice_wire::units::Bytes;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

/// Interval over which BUSY is measured.
const SAMPLE: Duration = Duration::from_millis(250);

/// Options of `gpuslice gpus`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Print one JSON object; sizes in bytes
    #[arg(long)]
    json: bool,
    /// Runtime directory of the daemon [default: /run/gpuslice as root]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

const HELP: &str = "\
Columns:
  USED        memory that slices hold: what their processes allocated, and what NVML shows beyond that; memory of
              suspended slices is on the host, and is shown at the end of the line
  PROMISED    the sum of the slices' caps
  UNPROMISED  memory that can still be promised: none of a GPU that takes no new slices, because it is unhealthy, in
              MIG mode, in an exclusive compute mode or has an MPS server; the end of the line tells this
  BUSY        the part of the last 250 ms in which slices had the GPU by their turns; without turns, as with one slice alone,
              NVML's utilisation of the GPU over the last second or less, and - if NVML does not tell it";

/// A GPU's figures.
pub struct Summary<'a> {
    /// The GPU.
    pub gpu: &'a Gpu,
    /// Memory held in its slices.
    pub used: Bytes,
    /// Memory of its suspended slices, on the host.
    pub on_host: Bytes,
    /// Its health.
    pub health: Health,
    /// Memory that can still be promised.
    pub unpromised: Bytes,
    /// The part of the time that its slices got, 0..=1; `None` if that is not known.
    pub busy: Option<f64>,
}

impl Summary<'_> {
    /// That it is not healthy, or takes no new slices, after `before`; empty for a healthy GPU.
    pub fn marks(&self, before: &str) -> String {
        match self.health.state {
            HealthState::Healthy => String::new(),
            _ => format!("{before}{}", self.health),
        }
    }

    /// The memory of its suspended slices, after `before`; empty for none.
    pub fn away(&self, before: &str) -> String {
        match self.on_host {
            Bytes::ZERO => String::new(),
            memory => format!("{before}{memory} suspended"),
        }
    }
}

/// The GPUs of `now`; their slices' time is measured since `before`.
pub fn summaries<'a>(before: &View, now: &'a View) -> Vec<Summary<'a>> {
    let summary = |gpu: &'a Gpu| {
        let rows = || now.rows.iter().filter(|row| row.gpu == gpu.uuid);
        let on_host = rows().map(|row| now.on_host(row));
        let on_host = on_host.fold(Bytes::ZERO, Bytes::saturating_add);
        let busy = rows().try_fold(0.0, |busy, row| Some(busy + now.got(row, before)?));
        let health = now.unhealthy.get(&gpu.uuid).copied().unwrap_or_default();
        let unpromised = match health.state.refuses_slices() {
            true => Bytes::ZERO,
            false => gpu.total.saturating_sub(gpu.promised),
        };
        Summary {
            gpu,
            used: now.held_on(gpu.uuid),
            on_host,
            health,
            unpromised,
            busy: busy.map(|it| it.min(1.0)),
        }
    };
    now.gpus.iter().map(summary).collect()
}

/// Runs `gpuslice gpus`.
///
/// # Errors
/// No daemon answers.
pub fn main(options: &Options) -> Result<ExitCode> {
    let admin = elsewhere::connect(options.runtime_dir.as_deref())?;
    let before = View::of(admin.list()?);
    std::thread::sleep(SAMPLE);
    let now = View::of(admin.list()?);
    let all = summaries(&before, &now);
    if options.json {
        let gpus: Vec<Value> = all.iter().map(json_of).collect();
        let all = json!({ "now_ns": now.now_ns, "gpus": gpus });
        out::line(&out::document("gpus", 1, all).to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    for line in lines(&all, out::terminal().map(|(width, _)| width)) {
        out::row(&line)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Headings. Text begins at the left, figures end at the right.
const HEADS: [&str; 9] =
    ["GPU", "PRODUCT", "POLICY", "USED", "PROMISED", "UNPROMISED", "TOTAL", "BUSY", "SLICES"];
/// The columns of the product and the policy.
const PRODUCT: usize = 1;
const POLICY: usize = 2;

/// The table, the heading first. A product's name is cut, to five cells at least, where a line would be longer than
/// `most` cells.
fn lines(all: &[Summary<'_>], most: Option<usize>) -> Vec<String> {
    let rows: Vec<[String; 9]> = all.iter().map(cells).collect();
    let width = |at: usize| {
        let cells = rows.iter().map(|row| row[at].width());
        cells.chain([HEADS[at].len()]).max().unwrap_or(0)
    };
    let mut widths: [usize; 9] = std::array::from_fn(width);
    let mark = |it: &Summary<'_>| it.marks("  ") + &it.gpu.mark("  ") + &it.away("  ");
    let marks: Vec<String> = all.iter().map(mark).collect();
    let longest = marks.iter().map(|mark| mark.width()).max().unwrap_or(0);
    let whole = widths.iter().sum::<usize>() + widths.len() - 1 + longest;
    let over = most.map_or(0, |most| whole.saturating_sub(most));
    widths[PRODUCT] = widths[PRODUCT].saturating_sub(over).max(widths[PRODUCT].min(5));
    let line = |cells: &[String; 9], mark: &str| {
        let padded = cells.iter().zip(widths).enumerate().map(|(at, (text, width))| {
            let text = cut(text, width);
            let space = " ".repeat(width.saturating_sub(text.width()));
            if [PRODUCT, POLICY].contains(&at) { text + &space } else { space + &text }
        });
        padded.collect::<Vec<_>>().join(" ") + mark
    };
    let head = line(&HEADS.map(str::to_owned), "");
    let told = rows.iter().zip(&marks).map(|(cells, mark)| line(cells, mark));
    [head].into_iter().chain(told).collect()
}

/// A GPU's texts, in the order of [`HEADS`].
fn cells(it: &Summary<'_>) -> [String; 9] {
    let gpu = it.gpu;
    [
        gpu.index.to_string(),
        if gpu.product.is_empty() { "-".to_owned() } else { gpu.product.clone() },
        gpu.policy.to_string(),
        it.used.to_string(),
        gpu.promised.to_string(),
        it.unpromised.to_string(),
        gpu.total.to_string(),
        it.busy.map_or("-".to_owned(), |busy| format!("{:.1}%", 100.0 * busy)),
        gpu.slices.to_string(),
    ]
}

/// A GPU's figures as JSON.
pub fn json_of(it: &Summary<'_>) -> Value {
    let gpu = it.gpu;
    json!({
        "index": gpu.index, "uuid": gpu.uuid.to_string(), "simulated": gpu.uuid.is_simulated(),
        "profile": gpu.uuid.profile(), "product": gpu.product, "policy": gpu.policy.name(), "slices": gpu.slices,
        "health": it.health.state.name(),
        "memory_total": gpu.total.0, "memory_used": it.used.0, "memory_promised": gpu.promised.0,
        "memory_unpromised": it.unpromised.0, "memory_suspended": it.on_host.0, "busy": it.busy,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Row;
    use crate::table::tests::{gpu, slice};
    use gpuslice_wire::snapshot::{Snapshot, SuspensionState};

    #[test]
    fn a_gpu_has_the_sums_of_its_slices() {
        let view = |now_ns, gpu_ns| {
            let held = Row {
                used: Bytes(3 << 20),
                untracked: Bytes(1 << 20),
                ..slice("a", 1, None, true, gpu_ns)
            };
            let rows = vec![held, slice("b", 1, None, true, gpu_ns / 2)];
            let promised = Gpu { promised: Bytes(768 << 20), ..gpu(1, 4) };
            let other = Gpu { product: String::new(), ..gpu(2, 7) };
            View { now_ns, rows, gpus: vec![promised, other], ..View::default() }
        };
        let (before, now) = (view(0, 0), view(1_000, 500));
        let told = lines(&summaries(&before, &now), None);
        assert_eq!(
            told,
            [
                "GPU PRODUCT     POLICY USED PROMISED UNPROMISED TOTAL  BUSY SLICES",
                "  4 NVIDIA H200 soft   4MiB   768MiB     256MiB  1GiB 75.0%      1",
                "  7 -           soft     0B       0B       1GiB  1GiB  0.0%      1",
            ]
        );
        let json = json_of(&summaries(&before, &now)[0]);
        assert_eq!((&json["memory_used"], &json["busy"]), (&(4 << 20).into(), &0.75.into()));
    }

    #[test]
    fn a_gpu_without_turns_is_as_busy_as_nvml_shows() {
        let view = |now_ns, loads: &[f64]| {
            let rows = vec![Row { gated: 0, ..slice("a", 1, None, true, now_ns) }];
            let loads = loads.iter().map(|load| (rows[0].gpu, *load)).collect();
            View { now_ns, rows, loads, gpus: vec![gpu(1, 4)], ..View::default() }
        };
        let busy = |loads: &[f64]| {
            let (before, now) = (view(0, &[]), view(1_000, loads));
            let all = summaries(&before, &now);
            let cell = lines(&all, None)[1].split_whitespace().rev().nth(1).map(str::to_owned);
            (cell.unwrap_or_default(), json_of(&all[0])["busy"].clone())
        };
        assert_eq!(busy(&[0.02]), ("2.0%".to_owned(), 0.02.into()));
        assert_eq!(busy(&[]), ("-".to_owned(), Value::Null));
    }

    #[test]
    fn a_gpu_that_takes_no_slices_has_no_memory_to_promise() {
        for (state, mark, mib) in [
            (HealthState::Mig, "  MIG mode, no slices", 0),
            (HealthState::Mps, "  MPS, no new slices", 0),
            (HealthState::Exclusive, "  exclusive compute mode, no new slices", 0),
            (HealthState::Xid, "  unhealthy (Xid 79)", 0),
            (HealthState::Ecc, "  unhealthy (memory error)", 0),
            (HealthState::Lost, "  unhealthy (lost)", 0),
            (HealthState::Healthy, "  1", 1024),
        ] {
            let health = Health { state, xid: 79, since: 1 };
            let row = Snapshot::GpuHealth { uuid: gpu(1, 0).uuid, health, errors: 0 };
            let view = View { gpus: vec![gpu(1, 0), gpu(2, 1)], ..View::of((0, vec![row])) };
            let all = summaries(&view, &view);
            let told = lines(&all, None);
            assert!(told[1].ends_with(mark) && told[2].ends_with("  1"), "{told:?}");
            let json = all.iter().map(json_of).collect::<Vec<_>>();
            assert_eq!((all[0].unpromised.0 >> 20, all[1].unpromised.0 >> 20), (mib, 1024));
            assert_eq!(json[0]["memory_unpromised"], mib << 20);
            let told = [&json[0]["health"], &json[1]["health"]];
            assert_eq!(told, [&json!(state.name()), &json!("healthy")]);
        }
    }

    #[test]
    fn a_narrow_terminal_cuts_the_product() {
        let simulated = "GPU-67707573-696d-82f3-ac20-e16a02382aa8".parse().expect("a UUID");
        let product = "gpuslice simulated GPU".to_owned();
        let gib = |gib: u64| Bytes(gib << 30);
        let gpu =
            Gpu { uuid: simulated, product, promised: gib(1000), total: gib(1023), ..gpu(1, 15) };
        let view = View { gpus: vec![gpu], ..View::default() };
        let of = |most| lines(&summaries(&view, &view), most)[1].clone();
        assert_eq!(of(None), of(Some(200)));
        assert!(of(Some(80)).width() <= 80 && of(Some(80)).contains(" gpus"), "{}", of(Some(80)));
        assert!(of(Some(20)).contains(" gpus\u{2026} "), "{}", of(Some(20)));
    }

    #[test]
    fn memory_of_a_suspended_slice_is_not_on_the_gpu() {
        let held = |name, used: u64| {
            let (used, reserved) = (Bytes(used << 20), Bytes((used + 1) << 20));
            Row { used, reserved, ..slice(name, 1, None, true, 0) }
        };
        let in_state = |state| {
            let mut rows = vec![held("a", 512), held("b", 256)];
            if state == SuspensionState::Suspended {
                rows[0].used = Bytes::ZERO;
            }
            let suspensions = [("a".to_owned(), state)].into();
            let view = View { rows, suspensions, gpus: vec![gpu(1, 0)], ..View::default() };
            let all = summaries(&view, &view);
            // Of `gpuslice web`, too.
            let json = json_of(&all[0]);
            let mib = |key| Value::as_u64(&json[key]).expect("bytes") >> 20;
            (mib("memory_used"), mib("memory_suspended"), lines(&all, None)[1].clone())
        };
        let (used, on_host, line) = in_state(SuspensionState::Suspended);
        assert_eq!((used, on_host), (256, 513));
        assert!(line.ends_with("  513MiB suspended"), "{line}");
        // On the way it counts for both: the daemon keeps room for it in both places.
        for state in [SuspensionState::Suspending, SuspensionState::Resuming] {
            let (used, on_host, _) = in_state(state);
            assert_eq!((used, on_host), (768, 513), "{state:?}");
        }
    }
}
