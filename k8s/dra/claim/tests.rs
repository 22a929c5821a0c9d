//! Claims as a scheduler writes them, and as none does.

use super::*;
use crate::testing::{gpu, uuid};
use serde_json::json;

fn rows() -> Rows {
    Rows {
        gpus: (0..4).map(|number| gpu(number, Bytes(80 << 30))).collect(),
        claims: Vec::new(),
        own: Vec::new(),
    }
}

fn result(request: &str, device: &str, memory: &str, cores: &str) -> Value {
    json!({
        "request": request, "driver": NAME, "pool": "n1", "device": device,
        "shareID": format!("share-{device}"),
        "consumedCapacity": { "memory": memory, "cores": cores, "shares": "1" },
    })
}

fn claim(results: &[Value], config: &Value) -> Claim {
    serde_json::from_value(json!({
        "metadata": { "name": "c", "namespace": "default", "uid": "u1" },
        "status": {
            "allocation": { "devices": { "results": results, "config": config } },
            "reservedFor": [{ "resource": "pods", "name": "p", "uid": "pu" }],
        },
    }))
    .expect("a claim")
}

fn read(results: &[Value]) -> Result<Vec<Group>, BadClaim> {
    groups(&claim(results, &json!([])), "u1", "n1", &rows())
}

#[test]
fn equal_results_of_a_request_are_one_reservation() {
    let all = [
        result("a", "gpu-1", "20Gi", "30"),
        result("a", "gpu-3", "20Gi", "30"),
        result("b", "gpu-0", "5Gi", "0"),
    ];
    let groups = read(&all).expect("a claim");
    assert_eq!(groups.len(), 2);
    let first = &groups[0];
    assert_eq!(first.results, [0, 1]);
    assert_eq!(first.words.claim.as_str(), "u1-r0");
    assert_eq!(first.words.gpus.as_slice(), [uuid(1), uuid(3)]);
    assert_eq!((first.words.memory, first.words.share), (Bytes(20 << 30), Percent::new(30).ok()));
    assert_eq!(first.words.owner.pod.as_str(), "p");
    let second = &groups[1];
    assert_eq!((second.results.as_slice(), second.words.share), ([2].as_slice(), None));
    assert_eq!(second.words.claim.as_str(), "u1-r1");
    let words = Text::<63>::new("").expect("short");
    assert_eq!(second.words.owner.container, words);
}

/// Each request is a device of its own, also where the scheduler put both on one GPU.
#[test]
fn requests_on_one_gpu_stay_apart() {
    let all = [result("a", "gpu-1", "20Gi", "30"), result("b", "gpu-1", "20Gi", "30")];
    let groups = read(&all).expect("a claim");
    let told: Vec<_> = groups.iter().map(|it| (it.words.claim.as_str(), &it.results[..])).collect();
    assert_eq!(told, [("u1-r0", &[0][..]), ("u1-r1", &[1][..])]);
    assert!(groups.iter().all(|it| it.words.gpus.as_slice() == [uuid(1)]));
}

/// The first pod of a claim ends, and the second one's preparation has the same words.
#[test]
fn the_words_do_not_follow_the_pods() {
    let mut claim = claim(&[result("a", "gpu-1", "20Gi", "30")], &json!([]));
    let mut rows = rows();
    let first = groups(&claim, "u1", "n1", &rows).expect("a claim").remove(0).words;
    rows.claims.push(Claimed {
        claim: first.claim,
        owner: first.owner,
        gpus: vec![1],
        memory: first.memory,
        share: first.share,
        released: false,
        used: Bytes(0),
        members: Vec::new(),
    });
    claim.status.reserved_for[0] =
        Consumer { resource: "pods".into(), name: "q".into(), uid: "qu".into() };
    assert_eq!(groups(&claim, "u1", "n1", &rows).expect("a claim").remove(0).words, first);
}

#[test]
fn parameters_of_class_and_claim_are_merged() {
    let opaque = |parameters: Value| json!({ "driver": NAME, "parameters": parameters });
    let config = json!([
        { "opaque": opaque(json!({ "weight": 2, "priority": "high", "gang": "never" })) },
        { "requests": ["a"], "opaque": opaque(json!({ "weight": 5, "shareLimit": 60 })) },
        { "opaque": { "driver": "other.example", "parameters": { "weight": 9 } } },
    ]);
    let all = [result("a/small", "gpu-1", "20Gi", "30"), result("b", "gpu-2", "20Gi", "30")];
    let groups = groups(&claim(&all, &config), "u1", "n1", &rows()).expect("a claim");
    let (a, b) = (&groups[0].words, &groups[1].words);
    assert_eq!((a.weight, a.share_limit), (Weight::new(5).ok(), Percent::new(60).ok()));
    assert_eq!((b.weight, b.share_limit), (Weight::new(2).ok(), None));
    assert_eq!((a.class, a.gang), (Class::High, Gangs::Never));
}

#[test]
fn bad_parameters_are_named() {
    for (parameters, words) in [
        (json!({ "memory": "1Gi" }), "memory"),
        (json!({ "weight": 0 }), "weight"),
        (json!({ "weight": -1 }), "u32"),
        (json!({ "shareLimit": 101 }), "100"),
        (json!({ "priority": "first" }), "high"),
        (json!({ "gang": "perhaps" }), "auto and never"),
        (json!("weight=1"), "invalid"),
    ] {
        let config = json!([{ "opaque": { "driver": NAME, "parameters": parameters } }]);
        let claim = claim(&[result("a", "gpu-1", "20Gi", "30")], &config);
        let error = groups(&claim, "u1", "n1", &rows()).expect_err("refused").to_string();
        assert!(error.contains(words), "{parameters}: {error}");
    }
}

#[test]
fn claims_that_no_scheduler_wrote_are_refused() {
    let good = result("a", "gpu-1", "20Gi", "30");
    let other = groups(&claim(std::slice::from_ref(&good), &json!([])), "u2", "n1", &rows());
    assert!(matches!(other, Err(BadClaim::Uid { .. })));
    assert_eq!(
        groups(
            &Claim { metadata: claim(&[], &json!([])).metadata, ..Claim::default() },
            "u1",
            "n1",
            &rows()
        ),
        Err(BadClaim::NotAllocated)
    );
    let many = vec![good.clone(); 33];
    assert_eq!(read(&many), Err(BadClaim::TooMany(33)));
    let mut foreign = good.clone();
    foreign["driver"] = json!("gpu.nvidia.com");
    assert_eq!(read(&[foreign]), Err(BadClaim::NoDevice));
    assert!(matches!(read(&[good.clone(), good.clone()]), Err(BadClaim::Twice { .. })));
    assert_eq!(read(&[result("a", "gpu-9", "1Gi", "0")]), Err(BadClaim::NoGpu("gpu-9".into())));
    let mut whole = good;
    whole.as_object_mut().expect("a result").remove("consumedCapacity");
    let error = read(&[whole]).expect_err("refused").to_string();
    assert!(error.contains("DRAConsumableCapacity"), "{error}");
    assert_eq!(read(&[result("a", "gpu-1", "0", "0")]), Err(BadClaim::NoAmounts("gpu-1".into())));
    let cores = read(&[result("a", "gpu-1", "1Gi", "101")]);
    assert_eq!(cores, Err(BadClaim::Cores { device: "gpu-1".into(), amount: 101 }));
    let huge = read(&[result("a", "gpu-1", "99999999999999999999Ei", "1")])
        .expect("the ledger refuses it");
    assert_eq!(huge[0].words.memory, Bytes(u64::MAX));
    let negative = serde_json::from_value::<AllocatedDevice>(result("a", "gpu-1", "-1Gi", "1"));
    assert!(negative.is_err());
}
