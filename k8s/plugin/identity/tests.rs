//! Which container a call is for, and which claims have ended.

use super::*;
use crate::testing::{container, listed, pod};
use gpuslice_wire::owner::Owner;
use gpuslice_wire::text::Text;
use gpuslice_wire::units::Bytes;
use serde_json::Value;

const MEMORY: &str = names::MEMORY;
const CORES: &str = names::CORES;

fn found(pods: &[Pod], list: &[PodResources], resource: &str, amount: u64) -> Vec<String> {
    after(&Answered::new(), pods, list, (resource, amount))
}

fn after(
    answered: &Answered,
    pods: &[Pod],
    list: &[PodResources],
    call: (&str, u64),
) -> Vec<String> {
    let all = candidates(pods, list, answered, call);
    all.iter().map(|it| format!("{}/{}", it.pod.metadata.name, it.container.name)).collect()
}

#[test]
fn the_call_is_for_the_first_container_without_devices() {
    let pods = [
        pod("old", &[], &[container("main", 3, 0)]),
        pod("new", &[], &[container("a", 3, 10), container("b", 3, 0)]),
        pod("unknown", &[], &[container("main", 3, 0)]),
    ];
    let old = listed("old", &[("main", &[(MEMORY, &["GPU::0"])])]);
    let first = listed("new", &[("a", &[]), ("b", &[])]);
    let list = [old.clone(), first];
    assert_eq!(found(&pods, &list, MEMORY, 3), ["new/a"]);
    assert!(found(&pods, &list, MEMORY, 2).is_empty(), "another amount");
    assert_eq!(found(&pods, &list, CORES, 10), ["new/a"]);
    let has: &[(&str, &[&str])] = &[(MEMORY, &["GPU::1"])];
    let second = listed("new", &[("a", has), ("b", &[])]);
    assert_eq!(found(&pods, &[old.clone(), second.clone()], MEMORY, 3), ["new/b"]);
    assert_eq!(
        found(&pods, &[old, second], CORES, 10),
        ["new/a"],
        "compute is asked for in its own call"
    );
}

/// The kubelet lists `a` and `b` only.
#[test]
fn an_init_container_is_first_until_its_call_is_answered() {
    let init = [container("i", 3, 10), container("j", 2, 0)];
    let pods = [pod("p", &init, &[container("a", 3, 20), container("b", 3, 0)])];
    let list = [listed("p", &[("a", &[]), ("b", &[])])];
    let mut answered = Answered::new();
    assert_eq!(after(&answered, &pods, &list, (MEMORY, 3)), ["p/i"]);
    answered.insert(("uid-p".to_owned(), 0, MEMORY.to_owned()));
    assert_eq!(after(&answered, &pods, &list, (CORES, 10)), ["p/i"], "its other call");
    assert_eq!(after(&answered, &pods, &list, (MEMORY, 2)), ["p/j"]);
    answered.insert(("uid-p".to_owned(), 1, MEMORY.to_owned()));
    assert_eq!(after(&answered, &pods, &list, (MEMORY, 3)), ["p/a"]);
    // A process that began after these calls goes by the amount.
    assert_eq!(after(&Answered::new(), &pods, &list, (CORES, 20)), ["p/a"]);
    let has: &[(&str, &[&str])] = &[(MEMORY, &["GPU::1"])];
    let later = [listed("p", &[("a", has), ("b", &[])])];
    assert_eq!(after(&Answered::new(), &pods, &later, (MEMORY, 3)), ["p/b"], "they come after");
    let only = [pod("q", &[container("i", 3, 0)], &[container("a", 0, 0)])];
    let listed_q = [listed("q", &[("a", &[])])];
    assert_eq!(found(&only, &listed_q, MEMORY, 3), ["q/i"]);
    let mut runs = only;
    runs[0].status.phase = "Running".to_owned();
    assert!(found(&runs, &listed_q, MEMORY, 3).is_empty(), "it has ended");
}

#[test]
fn ended_pods_are_no_candidates_and_the_first_bound_is_first() {
    let mut pods: Vec<Pod> =
        ["a", "b", "c"].map(|name| pod(name, &[], &[container("main", 3, 0)])).into();
    pods[0].status.phase = "Failed".to_owned();
    let time = |at: &str| (names::V1_ASSUME_TIME.to_owned(), at.to_owned());
    pods[1].metadata.annotations.extend([time("200")]);
    pods[2].metadata.annotations.extend([time("100")]);
    let list = ["a", "b", "c"].map(|name| listed(name, &[("main", &[])]));
    assert_eq!(found(&pods, &list, MEMORY, 3), ["c/main", "b/main"]);
}

#[test]
fn an_init_container_has_the_claim_of_its_successor() {
    let names = ResourceNames::default();
    let claims = |pod: &Pod| -> Vec<String> {
        containers(pod).map(|it| it.claimant(&names).claim()).collect()
    };
    let same = pod("p", &[container("i", 4, 0)], &[container("a", 2, 0), container("b", 4, 20)]);
    assert_eq!(claims(&same), ["uid-p-c1", "uid-p-c0", "uid-p-c1"]);
    let larger = pod("p", &[container("i", 5, 0)], &[container("a", 4, 0)]);
    assert_eq!(claims(&larger), ["uid-p-i0", "uid-p-c0"]);
    let mut sidecar = same;
    sidecar.spec.init_containers[0].restart_policy = "Always".to_owned();
    assert_eq!(claims(&sidecar)[0], "uid-p-i0", "a sidecar runs beside the others");
}

/// Kubernetes' own sum, and the room that the ledger reserves, for small pods of every shape.
#[test]
fn a_pod_needs_what_its_claims_take_and_no_less_than_kubernetes_counts() {
    let names = ResourceNames::default();
    let sidecar = |number: &str, memory, cores| {
        let mut one = container(number, memory, cores);
        one["restartPolicy"] = "Always".into();
        one
    };
    let needs = |init: &[Value], main: &[Value]| {
        let need = need(&pod("p", init, main), &names);
        (need.memory, need.cores)
    };
    let mains = [container("a", 4, 20), container("b", 2, 30)];
    assert_eq!(needs(&[], &mains), (6, 50));
    assert_eq!(needs(&[sidecar("s", 3, 5)], &mains), (9, 55));
    assert_eq!(needs(&[container("i", 4, 20), sidecar("s", 3, 5)], &mains), (9, 55), "a's claim");
    assert_eq!(needs(&[container("i", 5, 0)], &mains), (11, 50), "a claim of its own");
    assert_eq!(needs(&[container("i", 4, 30)], &mains), (10, 80), "neither container has both");
    assert_eq!(needs(&[sidecar("s", 3, 5)], &[container("a", 0, 0)]), (3, 5));
    for shape in 0..3_usize.pow(5) {
        let digit = |at: u32| (shape / 3_usize.pow(at) % 3) as u64;
        let first =
            if digit(4) == 0 { sidecar("s", digit(0), 1) } else { container("s", digit(0), 1) };
        let init = [first, container("i", digit(1), digit(4))];
        let pod = pod("p", &init, &[container("a", digit(2), 1), container("b", digit(3), 2)]);
        let claims: BTreeMap<String, u64> = containers(&pod)
            .map(|it| it.claimant(&names))
            .map(|it| (it.claim(), it.wants(MEMORY)))
            .collect();
        let need = need(&pod, &names).memory;
        assert_eq!(need, claims.into_values().sum::<u64>(), "{pod:?}");
        assert!(need >= kubernetes(&pod), "{pod:?}");
    }
}

/// The memory that a scheduler of Kubernetes counts.
fn kubernetes(pod: &Pod) -> u64 {
    let (mut sidecars, mut most) = (0, 0);
    for it in containers(pod) {
        match it.position {
            Position::Init(_) => most = most.max(sidecars + it.wants(MEMORY)),
            _ => sidecars += it.wants(MEMORY),
        }
    }
    most.max(sidecars)
}

fn claimed(claim: &str, uid: &str, pod: &str) -> Claimed {
    let owner = Owner {
        namespace: Text::new("default").expect("short"),
        pod: Text::new(pod).expect("short"),
        uid: Text::new(uid).expect("short"),
        container: Text::EMPTY,
    };
    let claim = ClaimId::new(claim).expect("a claim id");
    Claimed {
        claim,
        owner,
        gpus: vec![0],
        memory: Bytes(1),
        share: None,
        released: false,
        used: Bytes(0),
        members: Vec::new(),
    }
}

#[test]
fn claims_of_ended_pods_are_released_and_no_others() {
    let mut done = pod("done", &[], &[]);
    done.status.phase = "Succeeded".to_owned();
    let pods: BTreeMap<String, Pod> = [pod("lives", &[], &[]), done]
        .into_iter()
        .map(|pod| (pod.metadata.uid.clone(), pod))
        .collect();
    let rows = [
        claimed("uid-lives-c0", "uid-lives", "lives"),
        claimed("uid-done-c0", "uid-done", "done"),
        claimed("uid-gone-i0", "uid-gone", "gone"),
        claimed("uid-forced-c1", "uid-forced", "forced"),
        claimed("uid-whole-c0", "uid-whole", "whole"),
        claimed("uid-foreign-c0", "uid-foreign", "foreign"),
        claimed("of-another-agent", "uid-gone", "gone"),
        claimed("uid-other-c0", "uid-gone", "gone"),
    ];
    // Deleted by force: the first two run on, whatever mode gave them their devices.
    let list = [
        listed("forced", &[("main", &[(MEMORY, &["GPU::1"])])]),
        listed("whole", &[("main", &[(names::WHOLE, &["GPU::0"])])]),
        listed("foreign", &[("main", &[("nvidia.com/gpu", &["GPU::0"])])]),
        listed("done", &[]),
    ];
    let resources = [MEMORY, CORES, names::WHOLE].map(str::to_owned);
    let over = ended(&rows, &pods, &list, &resources);
    let over: Vec<&str> = over.iter().map(|it| it.as_str()).collect();
    assert_eq!(over, ["uid-done-c0", "uid-gone-i0", "uid-foreign-c0"]);
    assert_eq!(pod_of_claim("a-b-c12"), Some("a-b"));
    for text in ["a", "a-c", "a-x1", "a-c1x"] {
        assert_eq!(pod_of_claim(text), None, "{text}");
    }
}
