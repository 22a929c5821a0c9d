//! A snapshot in Prometheus' text format (0.0.4): one table holds the name, help and source of each
//! series with one value per row.

use crate::table::memory_enforcement_name;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::owner::Owner;
use gpuslice_wire::snapshot::Snapshot;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Nanoseconds in a second.
const NS: f64 = 1e9;
/// Parts in a whole.
const PPM: f64 = 1e6;

/// A family of series: name without prefix, help, and its value in a row. A name ends with its unit; a
/// counter's with `_total`.
struct Family(&'static str, &'static str, fn(&Snapshot) -> Option<f64>);

/// `of!(Slice, field => expression)`: the expression for rows of this kind.
macro_rules! of {
    ($kind:ident, $($field:ident),+ => $value:expr) => {
        |row| match *row {
            Snapshot::$kind { $($field,)+ .. } => $value,
            _ => None,
        }
    };
}

const FAMILIES: &[Family] = &[
    Family(
        "gpu_memory_bytes",
        "Physical memory of the GPU.",
        of!(Gpu, total => Some(total.0 as f64)),
    ),
    Family(
        "gpu_memory_promised_bytes",
        "Sum of the caps promised on the GPU.",
        of!(Gpu, promised => Some(promised.0 as f64)),
    ),
    Family(
        "gpu_slices",
        "Containers with a slice of the GPU.",
        of!(Gpu, slices => Some(f64::from(slices))),
    ),
    Family(
        "gpu_info",
        "Always 1; labels: how the GPU's time is divided (policy), whether it is simulated.",
        |row| matches!(row, Snapshot::Gpu { .. }).then_some(1.0),
    ),
    Family(
        "slice_info",
        "Always 1; labels: name, lane, class, how the memory cap is enforced, and whether the GPU is simulated.",
        |row| matches!(row, Snapshot::Slice { .. }).then_some(1.0),
    ),
    Family(
        "slice_memory_cap_bytes",
        "Memory cap of the slice.",
        of!(Slice, cap => Some(cap.0 as f64)),
    ),
    Family(
        "slice_memory_reserved_bytes",
        "Memory charged to the slice, unused credit included.",
        of!(Slice, reserved => Some(reserved.0 as f64)),
    ),
    Family(
        "slice_memory_used_bytes",
        "Memory held, as reported by its processes.",
        of!(Slice, used => Some(used.0 as f64)),
    ),
    Family(
        "slice_memory_untracked_bytes",
        "Memory that NVML shows beyond what its processes reserved.",
        of!(Slice, untracked => Some(untracked.0 as f64)),
    ),
    Family(
        "slice_memory_peak_bytes",
        "Highest memory use seen.",
        of!(Slice, peak => Some(peak.0 as f64)),
    ),
    Family(
        "slice_memory_refusals_total",
        "Allocations refused because of the cap.",
        of!(Slice, denied => Some(denied as f64)),
    ),
    Family(
        "slice_pinned_bytes",
        "Host memory pinned by the container, for all its GPUs together.",
        of!(Slice, pinned => Some(pinned.0 as f64)),
    ),
    Family(
        "slice_pinned_cap_bytes",
        "Cap on pinned host memory, where there is one.",
        of!(Slice, pinned_cap => pinned_cap.map(|cap| cap.0 as f64)),
    ),
    Family(
        "slice_weight",
        "Weight for the time that shares leave.",
        of!(Slice, weight => weight.map(|weight| f64::from(weight.get()))),
    ),
    Family(
        "slice_share_ratio",
        "Share of the GPU's time that is reserved for it, where there is one.",
        of!(Slice, share => share.map(|share| f64::from(share.get()) / 100.0)),
    ),
    Family(
        "slice_share_limit_ratio",
        "Limit of its part of the GPU's time, where one is set.",
        of!(Slice, share_limit => share_limit.map(|limit| f64::from(limit.get()) / 100.0)),
    ),
    Family(
        "slice_time_cap_ratio",
        "Upper limit of its part of the GPU's time, by its own limit and the policy.",
        of!(Slice, cap_ppm => Some(f64::from(cap_ppm) / PPM)),
    ),
    Family(
        "slice_processes",
        "Processes attached.",
        of!(Slice, clients => Some(f64::from(clients))),
    ),
    Family(
        "slice_runnable",
        "1 if it has work for the GPU now.",
        of!(Slice, runnable => Some(f64::from(runnable))),
    ),
    Family(
        "slice_gpu_seconds_total",
        "GPU time charged.",
        of!(Slice, gpu_ns => Some(gpu_ns as f64 / NS)),
    ),
    Family(
        "slice_wait_seconds_total",
        "Time spent runnable without a turn.",
        of!(Slice, wait_ns => Some(wait_ns as f64 / NS)),
    ),
    Family(
        "slice_runnable_seconds_total",
        "Time spent runnable, with or without a turn.",
        of!(Slice, runnable_ns => Some(runnable_ns as f64 / NS)),
    ),
    Family("slice_turns_total", "Turns granted.", of!(Slice, turns => Some(turns as f64))),
    Family(
        "slice_late_turns_total",
        "Turns after which it had not drained by the drain deadline.",
        of!(Slice, late_turns => Some(late_turns as f64)),
    ),
    Family(
        "slice_turns_closed_early_total",
        "Turns closed early for a higher class.",
        of!(Slice, closed_early => Some(closed_early as f64)),
    ),
    Family(
        "slice_stops_total",
        "Times its work was preempted on the GPU.",
        of!(Slice, stops => Some(stops as f64)),
    ),
    Family(
        "slice_stops_missed_total",
        "Attempted preemptions on the GPU without an effect, on all its GPUs.",
        of!(Slice, stops_missed => Some(stops_missed as f64)),
    ),
    Family(
        "slice_time_slice_seconds",
        "Hardware time slice set for it; 0 for the driver's default.",
        of!(Slice, time_slice_us => Some(time_slice_us as f64 / 1e6)),
    ),
    Family(
        "slice_time_slice_changes_total",
        "Times one of its processes had changed its hardware time slice.",
        of!(Slice, time_slice_changes => Some(time_slice_changes as f64)),
    ),
    Family(
        "slice_launches_total",
        "Launches while turns are taken, as counted by its processes.",
        of!(Slice, launches => Some(launches as f64)),
    ),
];

/// All series of these rows; `None`, for a daemon that does not answer, gives `gpuslice_up 0` alone.
pub fn render(rows: Option<&[Snapshot]>) -> String {
    let mut text = String::new();
    let up = u8::from(rows.is_some());
    head(&mut text, "up", "Whether gpusliced answers.");
    let _ = writeln!(text, "gpuslice_up {up}"); // into a string: cannot fail
    let pods = Pods::of_all(rows.unwrap_or_default());
    for Family(name, help, value) in FAMILIES {
        let mut begun = false;
        for row in rows.unwrap_or_default() {
            let Some(value) = value(row) else { continue };
            if !std::mem::replace(&mut begun, true) {
                head(&mut text, name, help);
            }
            let labels = labels(row, name.ends_with("_info")) + &pods.of(row);
            let _ = writeln!(text, "gpuslice_{name}{{{labels}}} {value}");
        }
    }
    super::wall_time::add(&mut text, rows.unwrap_or_default(), &pods);
    text
}

pub(super) fn head(text: &mut String, name: &str, help: &str) {
    let counts = name.ends_with("_total");
    let kind = if counts { "counter" } else { "gauge" };
    let _ = writeln!(text, "# HELP gpuslice_{name} {help}");
    let _ = writeln!(text, "# TYPE gpuslice_{name} {kind}");
}

/// The labels that identify a row's series; descriptive labels are on its `_info` alone.
fn labels(row: &Snapshot, info: bool) -> String {
    let mut all: Vec<(&str, String)> = Vec::new();
    match row {
        Snapshot::Gpu { uuid, index, policy, .. } => {
            all.push(("gpu", uuid.to_string()));
            if info {
                all.push(("index", index.0.to_string()));
                all.push(("policy", policy.name().to_owned()));
                all.push(("simulated", uuid.is_simulated().to_string()));
            }
        }
        Snapshot::Slice { container, name, gpu, lane, memory_enforcement, class, .. } => {
            all.push(("container", container.to_string()));
            all.push(("gpu", gpu.to_string()));
            if info {
                all.push(("name", name.to_string()));
                all.push(("lane", lane.0.to_string()));
                all.push((
                    "memory_enforcement",
                    memory_enforcement_name(*memory_enforcement).to_owned(),
                ));
                all.push(("class", class.name().to_owned()));
                all.push(("simulated", gpu.is_simulated().to_string()));
            }
        }
        Snapshot::SliceTime { .. }
        | Snapshot::SliceOwner { .. }
        | Snapshot::Daemon { .. }
        | Snapshot::End { .. } => {}
    }
    let all = all.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value)));
    all.collect::<Vec<_>>().join(",")
}

/// The labels by which Kubernetes names the containers of slices, each with its comma.
pub(super) struct Pods(BTreeMap<ContainerId, String>);

impl Pods {
    fn of_all(rows: &[Snapshot]) -> Pods {
        let owners = rows.iter().filter_map(|row| match row {
            Snapshot::SliceOwner { container, owner } => Some((*container, owner)),
            _ => None,
        });
        let labels = |owner: &Owner| {
            [
                ("namespace", owner.namespace.as_str()),
                ("pod", owner.pod.as_str()),
                ("pod_uid", owner.uid.as_str()),
                ("pod_container", owner.container.as_str()),
            ]
            .map(|(key, value)| format!(",{key}=\"{}\"", escaped(value)))
            .concat()
        };
        Pods(owners.map(|(container, owner)| (container, labels(owner))).collect())
    }

    /// Those of a slice's row; none if its container is not of Kubernetes.
    fn of(&self, row: &Snapshot) -> String {
        match row {
            Snapshot::Slice { container, .. } => self.of_container(container),
            _ => String::new(),
        }
    }

    /// Those of a container.
    pub(super) fn of_container(&self, container: &ContainerId) -> String {
        self.0.get(container).cloned().unwrap_or_default()
    }
}

/// Escapes a label value: names come from users and images.
pub(super) fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::ids::{ContainerId, GpuUuid, Lane, NvmlIndex};
    use gpuslice_wire::policy::{Class, Policy};
    use gpuslice_wire::snapshot::{MemoryEnforcement, TimeEnforcement};
    use gpuslice_wire::text::{Name, Text};
    use gpuslice_wire::units::{Bytes, Percent, Weight};
    use gpuslice_wire::waits::{WaitBehind, WaitCause};

    fn rows() -> Vec<Snapshot> {
        let (gpu, bytes) = (GpuUuid([7; 16]), Bytes(1 << 20));
        let mut rows = vec![Snapshot::Gpu {
            product: Name::EMPTY,
            uuid: gpu,
            index: NvmlIndex(3),
            total: Bytes(1 << 30),
            promised: bytes,
            slices: 1,
            policy: Policy::Soft,
        }];
        for lane in 0..2 {
            rows.push(Snapshot::Slice {
                container: ContainerId::new("web").expect("an id"),
                name: Name::new("a \"b\\c").expect("a name"),
                gpu: GpuUuid([lane; 16]),
                lane: Lane(lane),
                cap: bytes,
                reserved: bytes,
                untracked: bytes,
                used: bytes,
                peak: bytes,
                denied: 4,
                denied_need: bytes,
                denied_left: bytes,
                denied_at_ns: 0,
                memory_enforcement: MemoryEnforcement::Driver,
                pinned: bytes,
                pinned_cap: None,
                weight: Some(Weight::ONE),
                share: Percent::new(20).ok(),
                share_limit: Percent::new(25).ok(),
                class: Class::Normal,
                cap_ppm: 250_000,
                clients: 1,
                runnable: 1,
                gated: 0,
                holds: 0,
                gang: 0,
                gpu_ns: 1_500_000_000,
                wait_ns: 0,
                runnable_ns: 0,
                turns: 2,
                late_turns: 0,
                closed_early: 0,
                time_enforcement: TimeEnforcement::Shim,
                time_slice_us: 6_000,
                time_slice_changes: 1,
                stops: 0,
                stops_missed: 0,
                launches: 0,
            });
            rows.push(time(lane));
        }
        rows
    }

    /// One slice waited behind a container, the other one never waited.
    fn time(lane: u8) -> Snapshot {
        let train = WaitBehind {
            container: ContainerId::new("train").ok(),
            total_ns: 2_500_000_000,
            longest_ns: 1_500_000_000,
            cause: WaitCause::LongKernel,
            by_cause_ns: [0, 0, 2_500_000_000, 0, 0],
        };
        let mut behind = [WaitBehind::default(); 3];
        if lane == 0 {
            behind[0] = train;
        }
        Snapshot::SliceTime {
            container: ContainerId::new("web").expect("an id"),
            gpu: GpuUuid([lane; 16]),
            lane: Lane(lane),
            since_ns: 1,
            running_ns: 0,
            waiting_ns: behind[0].total_ns,
            handover_ns: 250_000_000,
            limited_ns: 0,
            gang_ns: 0,
            idle_ns: 0,
            absent_ns: 0,
            behind,
            others_ns: 0,
        }
    }

    #[test]
    fn waits_name_the_container_and_the_cause() {
        let text = render(Some(&rows()));
        for line in [
            "waited_behind_seconds_total{container=\"web\",gpu=\"GPU-00000000-0000-0000-0000-000000000000\",behind=\"train\"} 2.5",
            "behind=\"train\",cause=\"long-kernel\"} 1.5",
            ",part=\"handover\"} 0.25",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert_eq!(text.matches("behind=\"").count(), 2, "one slice never waited");
        assert!(!render(Some(&[])).contains("wall"));
    }

    /// The owner's names are labels of every series of the slice, also of its wall time.
    #[test]
    fn series_of_a_slice_name_its_pod() {
        let owner = Owner {
            namespace: Text::new("default").expect("short"),
            pod: Text::new("web-\"0").expect("short"),
            uid: Text::new("u-1").expect("short"),
            container: Text::new("main").expect("short"),
        };
        let container = ContainerId::new("web").expect("an id");
        let mut rows = rows();
        rows.push(Snapshot::SliceOwner { container, owner });
        let text = render(Some(&rows));
        let labels = r#",namespace="default",pod="web-\"0",pod_uid="u-1",pod_container="main""#;
        let series = text.lines().filter(|line| line.contains("{container="));
        for line in series {
            assert!(line.contains(labels), "{line}");
        }
        assert!(text.contains(&format!("{labels},part=\"handover\"}} 0.25")), "{text}");
    }

    /// The format's own rules: each family once, headed, of a valid name; each series once.
    #[test]
    fn the_text_follows_the_exposition_format() {
        let text = render(Some(&rows()));
        let mut families = std::collections::BTreeSet::new();
        let mut series = std::collections::BTreeSet::new();
        let mut family = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().expect("a name");
                assert!(families.insert(family), "{family} twice");
                assert_eq!(rest.ends_with(" counter"), family.ends_with("_total"));
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').expect("a value");
                assert_eq!(name.split('{').next(), Some(family), "{line}");
                assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
                assert!(series.insert(name), "{name} twice");
            }
        }
        assert!(text.contains("gpuslice_slice_gpu_seconds_total{container=\"web\",gpu=\"GPU-"));
        assert!(text.contains("} 1.5\n") && text.contains("} 0.25\n"));
        assert!(text.contains(r#"name="a \"b\\c",lane="1",memory_enforcement="driver""#), "{text}");
        assert!(!text.contains("pinned_cap_bytes"), "there is none");
    }

    #[test]
    fn an_absent_daemon_is_reported() {
        assert!(render(None).ends_with("gpuslice_up 0\n"));
        assert!(render(Some(&[])).ends_with("gpuslice_up 1\n"));
    }
}
