//! A snapshot as JSON: `gpuslice ps --json`.

use super::{Gpu, Row, View, memory_enforcement_name, time_enforcement_name};
use gpuslice_wire::waits::{WaitBehind, WaitCause};
use serde_json::{Value, json};

/// Time behind a container, by the cause's name.
fn by_cause(wait: &WaitBehind) -> Value {
    let causes = WaitCause::ALL.into_iter().zip(wait.by_cause_ns);
    causes.map(|(cause, ns)| (cause.name().to_owned(), Value::from(ns))).collect()
}

/// Where a slice's wall time went; null where the snapshot lacks it.
fn wall_time(view: &View, row: &Row) -> Value {
    let Some(time) = view.time(row) else {
        return Value::Null;
    };
    let name = |container: &str| {
        let named = view.rows.iter().find(|row| row.container == container);
        named.map(|row| row.name.clone())
    };
    let behind = time.waits().map(|(container, wait)| {
        json!({
            "container": container.as_str(), "name": name(container.as_str()),
            "total_ns": wait.total_ns, "longest_ns": wait.longest_ns, "cause": wait.cause.name(),
            "by_cause_ns": by_cause(wait),
        })
    });
    let mut value = json!({
        "since_ns": time.since_ns, "wall_ns": view.now_ns.saturating_sub(time.since_ns),
        "behind": behind.collect::<Vec<_>>(), "others_ns": time.others_ns,
    });
    for (part, ns) in time.parts {
        value[format!("{part}_ns")] = ns.into();
    }
    value
}

/// A slice's container as Kubernetes names it; null where it is unknown.
pub fn pod(view: &View, row: &Row) -> Value {
    let Some(owner) = view.owners.get(&row.container) else {
        return Value::Null;
    };
    json!({
        "namespace": owner.namespace.as_str(), "name": owner.pod.as_str(),
        "uid": owner.uid.as_str(), "container": owner.container.as_str(),
    })
}

/// A snapshot as one JSON object; sizes in bytes, times in ns.
pub fn json(view: &View) -> Value {
    let gpu = |gpu: &Gpu| {
        json!({
            "uuid": gpu.uuid.to_string(), "product": gpu.product, "simulated": gpu.uuid.is_simulated(),
            "profile": gpu.uuid.profile(), "index": gpu.index, "memory_total": gpu.total.0,
            "memory_promised": gpu.promised.0, "slices": gpu.slices,
            "policy": gpu.policy.name(), "policy_number": gpu.policy.number(),
            "utilisation": view.loads.get(&gpu.uuid),
        })
    };
    let slice = |row: &Row| {
        let mut value = json!({
            "container": row.container, "name": row.name, "gpu": row.gpu.to_string(),
            "simulated": row.gpu.is_simulated(),
            "memory_cap": row.cap.0, "memory_reserved": row.reserved.0, "memory_used": row.used.0,
            "memory_untracked": row.untracked.0, "memory_over": view.is_over(row),
            "memory_peak": row.peak.0, "lane": row.lane.0,
            "memory_enforcement": memory_enforcement_name(row.memory_enforcement),
            "pinned": row.pinned.0, "pinned_cap": row.pinned_cap.map(|cap| cap.0),
            "denied": row.denied, "denied_need": row.denied_need.0,
            "denied_left": row.denied_left.0, "denied_at_ns": (row.denied_at_ns > 0).then_some(row.denied_at_ns),
            "weight": row.weight,
            "share": row.share, "share_limit": row.share_limit, "class": row.class.name(), "time_cap_ppm": row.cap_ppm,
            "clients": row.clients, "runnable": row.runnable != 0, "share_due": view.due(row),
            "gpu_ns": row.gpu_ns, "wait_ns": row.wait_ns, "runnable_ns": row.runnable_ns,
            "turns": row.turns, "late_turns": row.late_turns, "closed_early": row.closed_early,
            "launches": row.launches, "gang": row.gang != 0, "stops": row.stops,
            "stops_missed": row.stops_missed,
            "time_enforcement": time_enforcement_name(row.time_enforcement),
            "time_slice_us": row.time_slice_us, "time_slice_changes": row.time_slice_changes,
            "time": wall_time(view, row), "pod": pod(view, row),
        });
        // One field more is beyond what the macro expands.
        let suspension = view.suspensions.get(&row.container);
        value["denied_credit"] = row.denied_credit.0.into();
        value["suspension"] = suspension.map(|it| it.name()).into();
        value["frozen"] = view.frozen.contains(&row.container).into();
        value["memory_suspended"] = view.on_host(row).0.into();
        value["memory_limit"] = view.limit(row).limit.0.into();
        value["memory_wanted"] = view.limit(row).wanted.0.into();
        value
    };
    let all = json!({
        "now_ns": view.now_ns,
        "gpus": view.gpus.iter().map(gpu).collect::<Vec<_>>(),
        "slices": view.rows.iter().map(slice).collect::<Vec<_>>(),
    });
    crate::out::document("ps", 1, all)
}

#[cfg(test)]
mod tests {
    use super::super::tests::slice;
    use super::*;
    use crate::wall_time::WallTime;
    use gpuslice_wire::ids::{ContainerId, GpuUuid};
    use gpuslice_wire::owner::Owner;
    use gpuslice_wire::text::Text;

    #[test]
    fn waits_name_the_container() {
        let container = |id: &str| ContainerId::new(id).expect("an id");
        let mut behind = [WaitBehind::default(); 3];
        behind[0] = WaitBehind {
            container: Some(container("train")),
            total_ns: 30,
            longest_ns: 20,
            cause: WaitCause::NoDrain,
            by_cause_ns: [10, 0, 0, 20, 0],
        };
        let time = WallTime {
            container: container("web"),
            gpu: GpuUuid([1; 16]),
            since_ns: 5,
            parts: [
                ("running", 10),
                ("waiting", 31),
                ("", 0),
                ("", 0),
                ("", 0),
                ("", 0),
                ("", 0),
                ("", 0),
            ],
            behind,
            others_ns: 1,
        };
        let mut train = slice("train", 1, None, true, 0);
        train.name = "training".to_owned();
        let rows = vec![slice("web", 1, None, true, 0), train];
        let view = View { now_ns: 46, rows, times: vec![time], ..View::default() };
        let all = json(&view);
        let time = &all["slices"][0]["time"];
        assert_eq!((&time["wall_ns"], &time["waiting_ns"]), (&json!(41), &json!(31)));
        let wait = json!({
            "container": "train", "name": "training", "total_ns": 30, "longest_ns": 20,
            "cause": "no-drain",
            "by_cause_ns": { "queue": 10, "higher-class": 0, "long-kernel": 0, "no-drain": 20, "gang": 0 },
        });
        assert_eq!((&time["behind"], &time["others_ns"]), (&json!([wait]), &json!(1)));
        assert_eq!(all["slices"][1]["time"], Value::Null);
    }

    #[test]
    fn a_slice_names_its_pod() {
        let owner = Owner {
            namespace: Text::new("default").expect("short"),
            pod: Text::new("web-0").expect("short"),
            uid: Text::new("u-1").expect("short"),
            container: Text::new("main").expect("short"),
        };
        let rows = vec![slice("web", 1, None, true, 0), slice("train", 1, None, true, 0)];
        let owners = [("web".to_owned(), owner)].into();
        let view = View { rows, owners, ..View::default() };
        let all = json(&view);
        let pod =
            json!({ "namespace": "default", "name": "web-0", "uid": "u-1", "container": "main" });
        assert_eq!((&all["slices"][0]["pod"], &all["slices"][1]["pod"]), (&pod, &Value::Null));
        let wide = crate::columns::lines(&view, &view, &crate::columns::standard(true));
        assert!(wide[1].ends_with("  default/web-0/main"), "{}", wide[1]);
        assert!(wide[2].ends_with("left"), "{}", wide[2]);
    }
}
