//! Decisions, and the sentences of refusals.

use super::*;
use crate::api::objects::Pod;
use crate::ledger::Claimed;
use crate::plugin::devices::Unit;
use crate::plugin::identity::containers;
use crate::testing::{container, gpu, pod};
use gpuslice_wire::node::HealthState;

const GIB: u64 = 1 << 30;

fn rows(gpus: &[(u64, u64, u32)]) -> Rows {
    let gpu = |(number, &(total, used, share)): (u8, &(u64, u64, u32))| {
        let mut gpu = gpu(number, Bytes(total * GIB));
        gpu.left = Bytes((total - used) * GIB);
        gpu.share_left = 100 - share;
        gpu
    };
    Rows { gpus: (0..).zip(gpus).map(gpu).collect(), claims: Vec::new(), own: Vec::new() }
}

fn decide_at(rows: &Rows, pod: &Pod, at: usize) -> Result<Decision, Refusal> {
    let inventory = Inventory::of(&rows.gpus, Unit(Bytes(GIB)));
    let names = ResourceNames::default();
    let node = Node { inventory: &inventory, rows, names: &names, placement: Placement::Binpack };
    decide(&node, &containers(pod).nth(at).expect("a container"))
}

fn refusal(rows: &Rows, pod: &Pod) -> String {
    decide_at(rows, pod, 0).expect_err("refused").to_string()
}

#[test]
fn memory_and_compute_are_one_decision() {
    // Memory alone would go to GPU 0 and compute alone to GPU 1, where memory is full.
    let rows = rows(&[(16, 12, 90), (16, 16, 0), (16, 0, 0)]);
    let both = pod("p", &[], &[container("main", 4, 50)]);
    let decision = decide_at(&rows, &both, 0).expect("GPU 2");
    assert_eq!((decision.cards, decision.units, decision.cores), (vec![2], 4, 50));
    let only_memory = pod("p", &[], &[container("main", 4, 0)]);
    assert_eq!(decide_at(&rows, &only_memory, 0).expect("GPU 0").cards, [0]);
}

#[test]
fn a_fragmented_node_says_so() {
    let rows = rows(&[(16, 12, 0), (16, 12, 30)]);
    let text = refusal(&rows, &pod("p", &[], &[container("main", 6, 10)]));
    assert_eq!(
        text,
        "the container asks for 6 x GiB on a GPU and 10 percent of compute, and no GPU of this node has that much \
         room: GPU 0 has 4 and 100 percent free, GPU 1 has 4 and 70 percent free; memory of different GPUs cannot \
         be added up, so ask for less, or let a scheduler that knows GPUs place the pod"
    );
}

fn annotated(key: &str, value: &str) -> Pod {
    let mut pod = pod("p", &[], &[container("a", 3, 0), container("b", 3, 0)]);
    pod.metadata.annotations.insert(key.to_owned(), value.to_owned());
    pod
}

#[test]
fn a_schedulers_choice_is_obeyed_or_refused() {
    let mut rows = rows(&[(16, 0, 0), (16, 15, 0), (16, 0, 0), (16, 0, 0)]);
    rows.gpus[3].health.state = HealthState::Mig;
    let first = annotated(names::V1_INDEX, "2");
    assert_eq!(decide_at(&rows, &first, 0).expect("GPU 2").cards, [2]);
    let second = annotated(names::V2_MEMORY, r#"{"0":{"0":3},"1":{"2":3}}"#);
    assert_eq!(decide_at(&rows, &second, 0).expect("GPU 0").cards, [0]);
    assert_eq!(decide_at(&rows, &second, 1).expect("GPU 2").cards, [2]);
    for (key, value, words) in [
        (names::V1_INDEX, "99", "does not have"),
        (names::V1_INDEX, "1", "no room"),
        (names::V1_INDEX, "3", "not healthy"),
        (names::V1_INDEX, "first", "must be the index"),
        (names::V2_MEMORY, r#"{"0":{"0":5}}"#, "asks for 3"),
        (names::V2_MEMORY, r#"{"0":{"0":3,"2":3}}"#, "2 GPUs in all"),
    ] {
        let text = refusal(&rows, &annotated(key, value));
        assert!(text.contains(words), "{value}: {text}");
    }
    let mut ours = first;
    ours.metadata.annotations.insert(names::OURS.to_owned(), "true".to_owned());
    assert_eq!(
        decide_at(&rows, &ours, 1).expect("any").cards,
        [0],
        "our own annotation binds nothing"
    );
}

#[test]
fn the_second_call_finds_the_first_ones_claim() {
    let mut rows = rows(&[(16, 0, 0), (16, 4, 0)]);
    let both = pod("p", &[], &[container("main", 4, 50)]);
    let first = decide_at(&rows, &both, 0).expect("the fuller GPU");
    assert_eq!(first.cards, [1]);
    rows.claims.push(Claimed {
        claim: first.claim,
        owner: first.owner,
        gpus: vec![1],
        memory: Bytes(4 * GIB),
        share: Percent::new(50).ok(),
        released: false,
        used: Bytes(0),
        members: Vec::new(),
    });
    // Now the GPU is full; the claim is there all the same.
    rows.gpus[1].left = Bytes(0);
    assert_eq!(decide_at(&rows, &both, 0).as_ref(), Ok(&first));
    let words = first.reservation(&Inventory::of(&rows.gpus, Unit(Bytes(GIB))));
    assert_eq!((words.memory, words.share), (Bytes(4 * GIB), Percent::new(50).ok()));
    assert_eq!(words.gpus.as_slice(), [rows.gpus[1].uuid]);
}

#[test]
fn several_gpus_get_equal_parts() {
    let rows = rows(&[(16, 0, 0), (16, 10, 0), (16, 0, 60)]);
    let mut several = pod("p", &[], &[container("main", 8, 100)]);
    let mut with = |count: &str| {
        several.metadata.labels.insert(names::COUNT.to_owned(), count.to_owned());
        several.clone()
    };
    let decision = decide_at(&rows, &with("2"), 0).expect("GPUs 1 and 0");
    assert_eq!((decision.cards, decision.units, decision.cores), (vec![1, 0], 4, 50));
    for bad in ["3", "0", "-1", "two", "17", ""] {
        assert!(refusal(&rows, &with(bad)).contains("aliyun.com/gpu-count"), "{bad}");
    }
    assert!(refusal(&rows, &with("4")).contains("set of 4 GPUs"));
}

#[test]
fn amounts_that_no_gpu_has_are_refused() {
    let rows = rows(&[(16, 0, 0)]);
    let text = |memory, cores| refusal(&rows, &pod("p", &[], &[container("m", memory, cores)]));
    assert!(text(0, 10).contains("add a limit for aliyun.com/gpu-mem"));
    assert!(text(1, 101).contains("at most 100"));
    assert!(text(17, 0).contains("17 x GiB"));
    assert!(text(u64::MAX, 0).contains("room"));
    let mut odd = pod("p", &[], &[container("m", 1, 0)]);
    odd.metadata.uid = "x".repeat(90);
    assert!(refusal(&rows, &odd).contains("uid"));
}

/// Four GPUs in two linked pairs, of which the first has other shares on one GPU.
#[test]
fn several_gpus_are_the_ones_that_are_linked() {
    let mut rows = rows(&[(16, 14, 0), (16, 0, 0), (16, 0, 0), (16, 0, 0)]);
    for (at, to) in [(0, 1), (1, 0), (2, 3), (3, 2)] {
        rows.gpus[at].links[to] = 4;
    }
    let mut two = pod("p", &[], &[container("main", 8, 0)]);
    two.metadata.labels.insert(names::COUNT.to_owned(), "2".to_owned());
    assert_eq!(decide_at(&rows, &two, 0).expect("a pair").cards, [2, 3]);
    // Where no pair has room, two that are not linked are better than none.
    rows.gpus[3].left = Bytes(0);
    assert_eq!(decide_at(&rows, &two, 0).expect("two").cards, [1, 2]);
}
