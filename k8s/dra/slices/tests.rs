//! Slices, and what a server may make of them.

use super::*;
use crate::testing::gpu;
use gpuslice_wire::owner::{ClaimId, Owner};
use gpuslice_wire::text::Text;
use gpuslice_wire::units::Percent;

fn claimed(claim: &str, gpus: &[u8], mib: u64, share: u32) -> Claimed {
    Claimed {
        claim: ClaimId::new(claim).expect("a claim id"),
        owner: Owner::default(),
        gpus: gpus.to_vec(),
        memory: Bytes(mib << 20),
        share: Percent::new(share).ok(),
        released: false,
        used: Bytes(0),
        members: Vec::new(),
    }
}

/// GPUs of 80 GiB with these claims, and 10 GiB and 20 % of GPU 1 in a slice outside Kubernetes.
fn rows(claims: Vec<Claimed>) -> Rows {
    let mut gpus: Vec<GpuFacts> = (0..3).map(|number| gpu(number, Bytes(80 << 30))).collect();
    gpus[1].left = Bytes(70 << 30);
    gpus[1].share_left = 80;
    gpus[1].slices = 1;
    for claim in &claims {
        for number in &claim.gpus {
            let gpu = &mut gpus[usize::from(*number)];
            gpu.left = gpu.left.saturating_sub(claim.memory);
            gpu.share_left -= claim.share.map_or(0, |share| share.get());
            gpu.slices += 1;
        }
    }
    Rows { gpus, claims, own: Vec::new() }
}

fn published(rows: &Rows, placement: Placement) -> Value {
    let node = NodeName { name: "n1".to_owned(), uid: "u1".to_owned() };
    slice(&node, rows, placement, &BTreeMap::new())
}

fn names(slice: &Value) -> Vec<&str> {
    let devices = slice["spec"]["devices"].as_array().expect("devices");
    devices.iter().map(|it| it["name"].as_str().expect("a name")).collect()
}

#[test]
fn a_device_has_what_pods_may_have() {
    let rows = rows(vec![claimed("uid-r0", &[1], 20 << 10, 30)]);
    let slice = published(&rows, Placement::Binpack);
    assert_eq!(names(&slice), ["gpu-1", "gpu-0", "gpu-2"], "the fullest first");
    let capacity = &slice["spec"]["devices"][0]["capacity"];
    // The claim is the scheduler's to subtract; the other slice is not.
    assert_eq!(capacity["memory"]["value"], "70Gi");
    assert_eq!(capacity["memory"]["requestPolicy"]["default"], "70Gi");
    assert_eq!(capacity["cores"]["value"], "80");
    assert_eq!(capacity["shares"]["value"], "19");
    let second = &slice["spec"]["devices"][1];
    assert_eq!(second["capacity"]["memory"]["value"], "80Gi");
    assert_eq!(second["attributes"]["uuid"]["string"], rows.gpus[0].uuid.to_string());
    assert_eq!(second["attributes"]["cudaComputeCapability"]["version"], "9.0.0");
    assert_eq!(second["allowMultipleAllocations"], true);
    assert!(second["taints"].is_null());
    assert_eq!(names(&published(&rows, Placement::Spread)), ["gpu-0", "gpu-2", "gpu-1"]);
}

/// Word for word: a server drops a field that it does not know, and says nothing.
#[test]
fn a_devices_fields_are_those_of_the_server() {
    let mut rows = rows(Vec::new());
    let gpu = &mut rows.gpus[0];
    gpu.product = Text::new("NVIDIA H200").expect("short");
    gpu.island = Text::new("i0").expect("short");
    gpu.driver = Text::new("580.65.06").expect("short");
    gpu.pci = Text::new("0000:3b:00.0").expect("short");
    gpu.numa = gpuslice_wire::node::Numa(Some(1));
    let roots = [("0000:3b:00.0".to_owned(), "pci0000:3a".to_owned())].into();
    let node = NodeName { name: "n1".to_owned(), uid: "u1".to_owned() };
    let slice = slice(&node, &rows, Placement::Spread, &roots);
    let spec = &slice["spec"];
    assert_eq!(
        (&spec["driver"], &spec["nodeName"], &spec["pool"]),
        (
            &json!("gpu.gpuslice.io"),
            &json!("n1"),
            &json!({ "name": "n1", "generation": 1, "resourceSliceCount": 1 })
        )
    );
    let device = &spec["devices"][0];
    assert_eq!(
        *device,
        json!({
            "name": "gpu-0",
            "allowMultipleAllocations": true,
            "attributes": {
                "uuid": { "string": rows.gpus[0].uuid.to_string() },
                "productName": { "string": "NVIDIA H200" },
                "nvlink": { "string": "i0" },
                "driverVersion": { "string": "580.65.06" },
                "resource.kubernetes.io/pcieRoot": { "string": "pci0000:3a" },
                "index": { "int": 0 },
                "numa": { "int": 1 },
                "cudaComputeCapability": { "version": "9.0.0" },
            },
            "capacity": {
                "memory": { "value": "80Gi", "requestPolicy": {
                    "default": "80Gi", "validRange": { "min": "256Mi", "step": "1Mi" },
                } },
                "cores": { "value": "100", "requestPolicy": {
                    "default": "0", "validRange": { "min": "0", "step": "1" },
                } },
                "shares": { "value": "20", "requestPolicy": { "default": "1", "validValues": ["1"] } },
            },
        })
    );
    let count = |part: &str| device[part].as_object().expect("an object").len();
    assert!(count("attributes") + count("capacity") <= 32, "a server takes no more");
}

#[test]
fn a_released_claim_with_living_containers_is_not_free() {
    let mut rows = rows(vec![claimed("uid-r0", &[0], 20 << 10, 30)]);
    rows.claims[0].released = true;
    let slice = published(&rows, Placement::Spread);
    let first = slice["spec"]["devices"]
        .as_array()
        .expect("devices")
        .iter()
        .find(|it| it["name"] == "gpu-0");
    assert_eq!(first.expect("gpu-0")["capacity"]["memory"]["value"], "60Gi");
}

#[test]
fn a_gpu_without_room_is_left_out_and_a_sick_one_is_tainted() {
    let mut rows = rows(Vec::new());
    rows.gpus[0].left = Bytes(255 << 20);
    rows.gpus[1].slices = 20;
    rows.gpus[2].health.state = HealthState::Xid;
    rows.gpus[2].health.xid = 79;
    let slice = published(&rows, Placement::Binpack);
    assert_eq!(names(&slice), ["gpu-2"]);
    let taint = &slice["spec"]["devices"][0]["taints"][0];
    assert_eq!(
        *taint,
        json!({ "key": "gpuslice.io/unhealthy", "value": "xid-79", "effect": "NoExecute" })
    );
    rows.gpus[2].health.state = HealthState::Mps;
    let slice = published(&rows, Placement::Binpack);
    let taint = &slice["spec"]["devices"][0]["taints"][0];
    assert_eq!((&taint["value"], &taint["effect"]), (&json!("mps"), &json!("NoSchedule")));
}

#[test]
fn a_gpu_of_odd_size_has_whole_steps() {
    let mut rows = rows(Vec::new());
    rows.gpus[0].left = Bytes((15079 << 20) + 12345);
    let slice = published(&rows, Placement::Binpack);
    assert_eq!(slice["spec"]["devices"][0]["capacity"]["memory"]["value"], "15079Mi");
}

#[test]
fn long_texts_are_left_out() {
    let mut rows = rows(Vec::new());
    rows.gpus[0].product = Text::new(&"x".repeat(65)).expect("fits");
    rows.gpus[0].pci = Text::new("0000:3b:00.0").expect("short");
    let roots = [("0000:3b:00.0".to_owned(), "pci0000:3a".to_owned())].into();
    let slice = slice(&NodeName::default(), &rows, Placement::Spread, &roots);
    let attributes = &slice["spec"]["devices"][0]["attributes"];
    assert!(attributes["productName"].is_null());
    assert_eq!(attributes["resource.kubernetes.io/pcieRoot"]["string"], "pci0000:3a");
}

#[test]
fn a_gate_that_is_off_is_seen() {
    let wanted = published(&rows(Vec::new()), Placement::Binpack);
    assert_eq!(check_gate(&wanted), Ok(()));
    let mut kept = wanted.clone();
    kept["spec"]["devices"][2]
        .as_object_mut()
        .expect("a device")
        .remove("allowMultipleAllocations");
    assert_eq!(check_gate(&kept), Err(GateOff));
    let mut kept = wanted;
    kept["spec"]["devices"][0]["capacity"]["memory"]
        .as_object_mut()
        .expect("one")
        .remove("requestPolicy");
    assert_eq!(check_gate(&kept), Err(GateOff));
    assert!(GateOff.to_string().contains("DRAConsumableCapacity"));
}

#[test]
fn what_a_server_adds_is_no_difference() {
    let wanted = published(&rows(Vec::new()), Placement::Binpack);
    let mut kept = wanted.clone();
    kept["metadata"]["resourceVersion"] = json!("7");
    kept["spec"]["pool"]["generation"] = json!(3);
    kept["spec"]["devices"][0]["capacity"]["memory"]["value"] = json!("71680Mi");
    assert!(covers(&wanted, &kept));
    kept["spec"]["devices"][0]["capacity"]["memory"]["value"] = json!("71681Mi");
    assert!(!covers(&wanted, &kept));
    let mut tainted = wanted.clone();
    tainted["spec"]["devices"][1]["taints"] = json!([{ "key": "k", "effect": "NoExecute" }]);
    assert!(!covers(&wanted, &tainted) && !covers(&tainted, &wanted));
    let mut fewer = wanted.clone();
    fewer["spec"]["devices"].as_array_mut().expect("devices").pop();
    assert!(!covers(&wanted, &fewer) && !covers(&fewer, &wanted));
}
