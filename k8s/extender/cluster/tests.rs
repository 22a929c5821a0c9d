//! Fit, best fit, and what is counted.

use super::*;
use crate::testing::{container, pod};

fn node(memory: u64, gpus: u64) -> Node {
    serde_json::from_value(json!({
        "metadata": { "name": "n" },
        "status": { "capacity": {
            "aliyun.com/gpu-mem": memory.to_string(), "aliyun.com/gpu-count": gpus.to_string(),
            "aliyun.com/gpu-core.percentage": gpus.saturating_mul(100).to_string(),
        } },
    }))
    .expect("a node")
}

fn bound(name: &str, gpu: &str, memory: u64, cores: u64) -> Pod {
    let mut pod = pod(name, &[], &[container("main", memory, cores)]);
    pod.spec.node_name = "n".to_owned();
    pod.metadata.annotations.insert(V1_INDEX.to_owned(), gpu.to_owned());
    pod
}

fn wants(memory: u64, cores: u64) -> Pod {
    pod("new", &[], &[container("main", memory, cores)])
}

#[test]
fn the_smallest_sufficient_room_is_taken() {
    let pods = [bound("a", "0", 8, 10), bound("b", "2", 11, 90)];
    let shared = shared(&node(45, 3), &pods, None);
    assert_eq!(shared.choose(&wants(4, 0)), Ok(vec![2]));
    assert_eq!(shared.choose(&wants(4, 20)), Ok(vec![0]), "GPU 2 has 10 percent left");
    assert_eq!(shared.choose(&wants(8, 0)), Ok(vec![1]));
    assert_eq!(shared.choose(&wants(16, 0)), Err(Unfit::NoRoom));
}

/// A sidecar runs beside the containers: a GPU has room for all of them, and counts all of them.
#[test]
fn sidecars_and_init_containers_count() {
    let with = |mut pod: Pod, always: bool, memory: u64| {
        let mut one = container("i", memory, 10);
        one["restartPolicy"] = if always { "Always" } else { "" }.into();
        pod.spec.init_containers = vec![serde_json::from_value(one).expect("a container")];
        pod
    };
    let empty = shared(&node(15, 1), &[], None);
    assert_eq!(empty.choose(&with(wants(10, 0), true, 6)), Err(Unfit::NoRoom));
    assert_eq!(empty.choose(&with(wants(10, 10), false, 6)), Ok(vec![0]));
    assert_eq!(empty.choose(&with(wants(0, 0), true, 16)), Err(Unfit::NoRoom));
    let pods = [with(bound("a", "0", 6, 0), true, 6)];
    let used = shared(&node(15, 1), &pods, None);
    assert_eq!(used.choose(&wants(4, 0)), Err(Unfit::NoRoom));
    assert_eq!(used.choose(&wants(3, 91)), Err(Unfit::NoRoom));
    assert_eq!(used.choose(&wants(3, 90)), Ok(vec![0]));
    // v2 has no number for a sidecar.
    let two = shared(&node(30, 2), &[], None);
    for (mut pod, on) in [
        (with(wants(4, 0), true, 6), [(0, 5), (1, 5)]),
        (with(wants(0, 0), true, 6), [(0, 3), (1, 3)]),
    ] {
        pod.metadata.annotations = annotations(&two, &pod, &[0, 1], 7);
        assert_eq!(allocation::of_pod(&pod), Ok(on.into()));
        assert_eq!(allocation::of_init(&pod), Ok([0, 1].into()));
    }
}

#[test]
fn a_nodes_label_spreads() {
    let mut node = node(45, 3);
    node.metadata.labels.insert(PLACEMENT.to_owned(), "spread".to_owned());
    let pods = [bound("a", "0", 8, 10)];
    assert_eq!(shared(&node, &pods, None).choose(&wants(4, 0)), Ok(vec![1]));
}

#[test]
fn ended_foreign_and_lying_pods_count_for_nothing() {
    let mut ended = bound("ended", "0", 15, 0);
    ended.status.phase = "Failed".to_owned();
    let mut elsewhere = bound("elsewhere", "0", 15, 0);
    elsewhere.spec.node_name = "other".to_owned();
    let pods = [ended, elsewhere, bound("lying", "99", 15, 0), bound("odd", "x", 15, 0)];
    let shared = shared(&node(15, 1), &pods, None);
    assert_eq!(shared.choose(&wants(15, 0)), Ok(vec![0]));
}

/// Annotations that a user writes on a pod of a node: it has what its limits say, and a pod without limits nothing.
#[test]
fn annotations_take_no_more_than_limits() {
    let with = |memory: u64, key: &str, text: &str| {
        let mut pod = bound("greedy", "0", memory, 0);
        pod.metadata.annotations.insert(key.to_owned(), text.to_owned());
        pod
    };
    let all = r#"{"0":{"0":1000000,"1":1000000}}"#;
    let mut pods: Vec<Pod> = (0..20).map(|_| with(0, V1_INDEX, "1")).collect();
    pods.extend([with(0, V2_MEMORY, all), with(3, V2_MEMORY, all)]);
    let shared = shared(&node(30, 2), &pods, None);
    assert_eq!(shared.choose(&wants(12, 0)), Ok(vec![0]));
    assert_eq!(shared.choose(&wants(13, 0)), Ok(vec![1]));
}

#[test]
fn excluded_gpus_get_no_pod() {
    let map = ConfigMap {
        data: [("gpus".to_owned(), "0, 1,x".to_owned())].into(),
        ..ConfigMap::default()
    };
    let shared = shared(&node(45, 3), &[], Some(&map));
    assert_eq!(shared.choose(&wants(4, 0)), Ok(vec![2]));
    let mut two = wants(4, 0);
    two.metadata.labels.insert(COUNT.to_owned(), "2".to_owned());
    assert_eq!(shared.choose(&two), Err(Unfit::NoRoom));
}

#[test]
fn nodes_without_shares_and_bad_labels_say_so() {
    let plain = shared(&Node::default(), &[], None);
    assert!(matches!(plain.choose(&wants(1, 0)), Err(Unfit::NotShared(_))));
    let mut without = node(15, 1);
    without.status.capacity.remove(CORES);
    let without = shared(&without, &[], None);
    assert!(matches!(without.choose(&wants(1, 5)), Err(Unfit::NoCores(_))));
    let mut odd = wants(3, 0);
    odd.metadata.labels.insert(COUNT.to_owned(), "2".to_owned());
    assert_eq!(shared(&node(30, 2), &[], None).choose(&odd), uneven("main", 3, MEMORY));
    odd.metadata.labels.insert(COUNT.to_owned(), "17".to_owned());
    let count = BadAmounts::Count("17".to_owned());
    assert_eq!(shared(&node(30, 2), &[], None).choose(&odd), Err(count.into()));
    assert_eq!(shared(&node(u64::MAX, u64::MAX), &[], None).gpus.len(), 64);
}

fn uneven(container: &str, amount: u64, resource: &str) -> Result<Vec<usize>, Unfit> {
    let (container, resource) = (container.to_owned(), resource.to_owned());
    Err(BadAmounts::Uneven { container, amount, resource, count: 2 }.into())
}

/// The device plugin would refuse them on the node.
#[test]
fn amounts_that_no_claim_has_say_so() {
    let choose = |init: &[&Value], mains: &[&Value], count: &str| {
        let owned = |all: &[&Value]| all.iter().map(|it| (*it).clone()).collect::<Vec<_>>();
        let (init, mains) = (owned(init), owned(mains));
        let mut pod = pod("new", &init, &mains);
        pod.metadata.labels.insert(COUNT.to_owned(), count.to_owned());
        shared(&node(30, 2), &[], None).choose(&pod)
    };
    let [memory, cores, both] = [("a", 4, 0), ("b", 0, 20), ("c", 4, 20)]
        .map(|(name, memory, cores)| container(name, memory, cores));
    let no_memory = |name: &str| {
        let (cores, memory) = (CORES.to_owned(), MEMORY.to_owned());
        Err(BadAmounts::NoMemory { container: name.to_owned(), cores, memory }.into())
    };
    assert_eq!(choose(&[], &[&cores], "1"), no_memory("b"));
    assert_eq!(choose(&[], &[&memory, &cores], "1"), no_memory("b"));
    assert_eq!(choose(&[&cores], &[&memory], "1"), no_memory("b"));
    assert_eq!(choose(&[&cores], &[&both], "1"), Ok(vec![0]), "it has the claim of c");
    let [three, five, share] = [("a", 3, 0), ("b", 5, 0), ("c", 4, 5)]
        .map(|(name, memory, cores)| container(name, memory, cores));
    assert_eq!(choose(&[], &[&three, &five], "2"), uneven("a", 3, MEMORY));
    assert_eq!(choose(&[], &[&share, &share], "2"), uneven("c", 5, CORES));
    assert_eq!(choose(&[&three], &[&memory], "2"), Ok(vec![0, 1]), "it has the claim of a");
}

/// What is written is what is read.
#[test]
fn annotations_name_the_gpus() {
    let shared = shared(&node(30, 2), &[], None);
    let one = annotations(&shared, &wants(4, 0), &[1], 7);
    assert_eq!(
        (one[V1_INDEX].as_str(), one[V1_DEVICE].as_str(), one[V1_POD].as_str()),
        ("1", "15", "4")
    );
    assert_eq!((one[V1_ASSIGNED].as_str(), one[V1_ASSUME_TIME].as_str()), ("false", "7"));
    let mut several =
        pod("p", &[], &[container("a", 4, 0), container("b", 0, 0), container("c", 2, 0)]);
    several.metadata.annotations = annotations(&shared, &several, &[1, 0], 7);
    assert_eq!(several.annotation(V2_MEMORY), Some(r#"{"0":{"0":2,"1":2},"2":{"0":1,"1":1}}"#));
    assert_eq!(allocation::of_pod(&several), Ok([(0, 3), (1, 3)].into()));
}
