//! The text of metrics: the formats' rules, labels, names of other exporters, and what a scrape of many slices costs.

use super::compat::{self, Base};
use super::exposition::{Scrape, open_metrics, plain};
use super::families::{FAMILIES, Kind};
use super::node::{Claim, NodeView};
use crate::table::tests::{gpu, slice};
use crate::table::{MemoryLimit, Row, View};
use crate::wall_time::WallTime;
use gpuslice_wire::history::EventKind;
use gpuslice_wire::ids::{ContainerId, GpuUuid};
use gpuslice_wire::node::{Health, HealthState};
use gpuslice_wire::owner::{ClaimId, Owner};
use gpuslice_wire::snapshot::{ClaimState, SuspensionState};
use gpuslice_wire::text::Text;
use gpuslice_wire::units::Bytes;
use gpuslice_wire::waits::{WaitBehind, WaitCause};
use std::collections::{BTreeMap, BTreeSet};

const GPU: GpuUuid = GpuUuid([1; 16]);

fn owner() -> Owner {
    Owner {
        namespace: Text::new("default").expect("short"),
        pod: Text::new("web-\"0").expect("short"),
        uid: Text::new("u-1").expect("short"),
        container: Text::new("main").expect("short"),
    }
}

/// `web` of a pod, which waited behind `train`, and `train` itself; a GPU with an error; a claim without containers.
fn node() -> NodeView {
    let held = |name: &str, gpu_ns| Row {
        used: Bytes(3 << 20),
        untracked: Bytes(1 << 20),
        ..slice(name, 1, None, true, gpu_ns)
    };
    let web =
        Row { name: "a \"b\\c\n".into(), wait_ns: 1_250_000_000, ..held("web", 1_500_000_000) };
    let mut behind = [WaitBehind::default(); 3];
    behind[0] = WaitBehind {
        container: ContainerId::new("train").ok(),
        total_ns: 2_500_000_000,
        longest_ns: 1_500_000_000,
        cause: WaitCause::LongKernel,
        by_cause_ns: [0, 0, 2_500_000_000, 0, 0],
    };
    let time = WallTime {
        container: ContainerId::new("web").expect("an id"),
        gpu: GPU,
        since_ns: 1,
        parts: ["running", "waiting", "handover", "limited", "gang", "idle", "suspended", "absent"]
            .map(|part| (part, 250_000_000)),
        behind,
        others_ns: 0,
    };
    let limit = MemoryLimit { limit: Bytes(2 << 30), wanted: Bytes(1 << 20) };
    let view = View {
        now_ns: 10_000_000_000,
        gpus: vec![gpu(1, 3)],
        rows: vec![web, held("train", 500_000_000)],
        times: vec![time],
        loads: BTreeMap::from([(GPU, 0.25)]),
        owners: BTreeMap::from([("web".to_owned(), owner())]),
        limits: BTreeMap::from([(("web".to_owned(), GPU), limit)]),
        ..View::default()
    };
    let health = Health { state: HealthState::Xid, xid: 79, since: 1 };
    NodeView {
        view,
        busy: BTreeMap::from([(GPU, 2_250_000_000)]),
        health: BTreeMap::from([(GPU, (health, 2))]),
        waits: BTreeMap::from([(("web".to_owned(), GPU), [0, 0, 3_000_000_000, 0, 0])]),
        events: EventKind::ALL.map(|kind| (kind, 7)).to_vec(),
        claims: vec![Claim {
            id: ClaimId::new("c-1").expect("an id"),
            state: ClaimState::Reserved,
            containers: 0,
            owner: owner(),
        }],
    }
}

fn text_of(node: NodeView) -> String {
    open_metrics(Scrape { node: Some(node), compat: None })
}

/// The only line of this series.
fn value(text: &str, series: &str) -> String {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    let value = lines.next().unwrap_or_else(|| panic!("{series} is not in {text}"));
    assert_eq!(lines.next(), None, "{series} twice");
    value.to_owned()
}

const OF_GPU: &str = r#"{gpu="3",UUID="GPU-01010101-0101-0101-0101-010101010101""#;
const OF_WEB: &str = r#",slice="web",name="a \"b\\c\n",namespace="default",pod="web-\"0",container="main",pod_uid="u-1""#;

#[test]
fn labels_join_with_other_exporters() {
    let text = text_of(node());
    for (name, want) in [
        ("gpu_busy_seconds_total", "2.25"),
        ("gpu_utilisation_ratio", "0.25"),
        ("gpu_healthy", "0"),
        ("gpu_xid", "79"),
    ] {
        assert_eq!(value(&text, &format!("gpuslice_{name}{OF_GPU}}}")), want);
    }
    assert_eq!(value(&text, &format!("gpuslice_gpu_memory_used_bytes{OF_GPU}}}")), "8388608");
    for (name, more, want) in [
        ("gpu_seconds_total", "", "1.5"),
        ("wait_seconds_total", "", "1.25"),
        ("due_ratio", "", "0.5"),
        ("memory_limit_bytes", "", "2147483648"),
        ("memory_wanted_bytes", "", "1048576"),
        ("wait_by_cause_seconds_total", ",cause=\"long-kernel\"", "3"),
        ("waited_behind_seconds_total", ",behind=\"train\"", "2.5"),
        ("longest_wait_seconds", ",behind=\"train\",cause=\"long-kernel\"", "1.5"),
        ("wall_seconds_total", ",part=\"handover\"", "0.25"),
    ] {
        assert_eq!(value(&text, &format!("gpuslice_slice_{name}{OF_GPU}{OF_WEB}{more}}}")), want);
    }
    let of_web = || text.lines().filter(|line| line.contains("slice=\"web\""));
    assert!(of_web().count() > 20, "{text}");
    assert_eq!(of_web().find(|line| !line.contains(OF_WEB)), None, "its pod is not named");
    // Without Kubernetes the kubelet's labels are absent, not empty.
    let train = |family: &str| {
        let series = format!("gpuslice_slice_{family}{OF_GPU},slice=\"train\",name=\"train\"}}");
        value(&text, &series)
    };
    assert_eq!(train("gpu_seconds_total"), "0.5");
    assert_eq!(train("memory_limit_bytes"), "1073741824", "its cap");
    assert_eq!(value(&text, "gpuslice_events_total{kind=\"overrun\"}"), "7");
    let claim = r#"gpuslice_claim_containers{claim="c-1",namespace="default",pod="web-\"0",container="main",pod_uid="u-1"}"#;
    assert_eq!(value(&text, claim), "0");
    assert!(!text.contains("pinned_cap_bytes"), "there is none");
}

/// Of a container with two GPUs, its pinned memory and the cap are reported once, so that a sum over its GPUs is right.
#[test]
fn what_a_whole_container_has_is_reported_once() {
    let mut node = node();
    let first = &mut node.view.rows[0];
    (first.pinned, first.pinned_cap, first.stops_missed) =
        (Bytes(1 << 30), Some(Bytes(2 << 30)), 5);
    let mut second = first.clone();
    second.lane = gpuslice_wire::ids::Lane(1);
    node.view.rows.push(second);
    let text = text_of(node);
    for (family, want) in [
        ("pinned_bytes", "1073741824"),
        ("pinned_cap_bytes", "2147483648"),
        ("stops_missed_total", "5"),
    ] {
        let all = text.lines().filter(|line| {
            line.starts_with(&format!("gpuslice_slice_{family}{{"))
                && line.contains("slice=\"web\"")
        });
        let values: Vec<_> = all.filter_map(|line| line.rsplit(' ').next()).collect();
        assert_eq!(values, [want], "{family}");
    }
    let caps = text.lines().filter(|line| line.starts_with("gpuslice_slice_memory_cap_bytes"));
    assert_eq!(caps.filter(|line| line.contains("slice=\"web\"")).count(), 2);
}

#[test]
fn memory_of_a_suspended_slice_is_on_the_host() {
    let mut node = node();
    node.view.rows[0].reserved = Bytes(5 << 20);
    let figures = |node: &NodeView| {
        let text = text_of(node.clone());
        let used = value(&text, &format!("gpuslice_gpu_memory_used_bytes{OF_GPU}}}"));
        let name = "gpuslice_slice_memory_suspended_bytes";
        (used, value(&text, &format!("{name}{OF_GPU}{OF_WEB}}}")))
    };
    assert_eq!(figures(&node), ("8388608".into(), "0".into()));
    node.view.suspensions.insert("web".into(), SuspensionState::Suspended);
    (node.view.rows[0].used, node.view.rows[0].untracked) = (Bytes::ZERO, Bytes(1 << 20));
    assert_eq!(figures(&node), ("5242880".into(), "4194304".into()), "1 MiB was left on the GPU");
}

/// The rules of both formats: each family once, headed, of a valid name; each series once; an end where one is due.
#[test]
fn the_text_follows_the_formats() {
    let base = Base { earlier: Some(View::default()), host: "node-1".into() };
    let open = open_metrics(Scrape { node: Some(node()), compat: Some(base) });
    assert!(open.ends_with("\n# EOF\n"));
    let text = plain(&open);
    assert!(!text.contains("# EOF") && !text.contains(" info\n"));
    let (mut families, mut series, mut family) = (BTreeSet::new(), BTreeSet::new(), "");
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
    let known: BTreeSet<String> =
        FAMILIES.iter().map(|it| format!("gpuslice_{}", it.name)).collect();
    let told =
        families.iter().filter(|name| name.starts_with("gpuslice_") && **name != "gpuslice_up");
    assert!(told.clone().count() > 40 && told.clone().all(|name| known.contains(*name)));
}

#[test]
fn names_in_the_table_have_their_ending_and_listed_labels() {
    let node = node();
    for family in FAMILIES {
        let ends = |end| family.name.ends_with(end);
        let kind = match (ends("_total"), ends("_info")) {
            (true, _) => Kind::Counter,
            (_, true) => Kind::Info,
            _ => Kind::Gauge,
        };
        assert_eq!(kind, family.kind, "{}", family.name);
        assert!(family.help.ends_with('.'), "{}", family.name);
    }
    let text = text_of(node);
    for family in FAMILIES.iter().filter(|family| !family.labels.is_empty()) {
        let line =
            text.lines().find(|line| line.starts_with(&format!("gpuslice_{}{{", family.name)));
        let line = line.unwrap_or_else(|| panic!("{} is not in the text", family.name));
        for label in family.labels {
            assert!(line.contains(&format!("{label}=\"")), "{label} is not in {line}");
        }
    }
}

#[test]
fn an_absent_daemon_is_reported() {
    let text = open_metrics(Scrape { node: None, compat: None });
    assert_eq!(value(&text, "gpuslice_up"), "0");
    assert!(text.contains("gpuslice_build_info{version=\"") && !text.contains("gpuslice_slice"));
    assert_eq!(value(&text_of(NodeView::default()), "gpuslice_up"), "1");
}

/// Utilisation is what the slice got since the earlier view.
#[test]
fn dashboards_of_cgpu_find_their_names() {
    let mut earlier = node().view;
    earlier.now_ns -= 2_000_000_000;
    earlier.rows[0].gpu_ns -= 500_000_000;
    let compat = |earlier| Some(Base { earlier, host: "node-1".into() });
    let text = open_metrics(Scrape { node: Some(node()), compat: compat(Some(earlier)) });
    let first = r#"{allocate_mode="share",container_name="main",minor_number="3",name="a \"b\\c\n",namespace_name="default",node_name="node-1",pod_name="web-\"0",slice="web",uuid="GPU-01010101-0101-0101-0101-010101010101"}"#;
    assert_eq!(value(&text, &format!("nvidia_gpu_duty_cycle{first}")), "25");
    assert_eq!(value(&text, &format!("nvidia_gpu_memory_used_bytes{first}")), "4194304");
    assert_eq!(value(&text, &format!("nvidia_gpu_memory_total_bytes{first}")), "1073741824");
    assert_eq!(value(&text, r#"nvidia_gpu_num_devices{node_name="node-1"}"#), "1");
    let second = format!(r#"{OF_GPU}{OF_WEB},Hostname="node-1",NodeName="node-1"}}"#);
    assert_eq!(value(&text, &format!("DCGM_CUSTOM_PROCESS_SM_UTIL{second}")), "25");
    assert_eq!(value(&text, &format!("DCGM_CUSTOM_PROCESS_MEM_USED{second}")), "4");
    let at_first = open_metrics(Scrape { node: Some(node()), compat: compat(None) });
    assert!(!at_first.contains("duty_cycle") && at_first.contains("nvidia_gpu_memory_used_bytes"));
    let plain_names = text_of(node());
    assert!(compat::FAMILIES.iter().all(|family| !plain_names.contains(family.0)));
}

#[test]
fn the_documentation_has_every_kind_of_event() {
    let page = include_str!("../../../docs/reference/events.md");
    for kind in EventKind::ALL {
        assert!(page.contains(&format!("\n| `{}` | ", kind.name())), "{}", kind.name());
    }
}
