//! Pods and what becomes of them.

use super::*;

fn settings() -> Settings {
    Settings {
        names: ResourceNames::default(),
        unit: "GiB".parse().expect("a unit"),
        class: "gpuslice.io".to_owned(),
        scheduler: "ack-co-scheduler".to_owned(),
    }
}

fn container(name: &str, memory: &Value, cores: &Value) -> Value {
    let mut limits = json!({ "cpu": "1" });
    for (resource, amount) in
        [("aliyun.com/gpu-mem", memory), ("aliyun.com/gpu-core.percentage", cores)]
    {
        if !amount.is_null() {
            limits[resource] = amount.clone();
        }
    }
    json!({ "name": name, "image": "i", "resources": { "limits": limits, "requests": limits } })
}

fn pod(containers: &[Value]) -> Value {
    json!({ "metadata": { "name": "p" }, "spec": { "containers": containers } })
}

/// The pod as the API server keeps it after the operations.
fn patched(pod: &Value) -> Value {
    let mut pod = pod.clone();
    for operation in decide(&pod.clone(), &settings()).expect("changed") {
        let path = operation["path"].as_str().expect("a path");
        let (parent, key) = path.rsplit_once('/').expect("a path");
        let key = key.replace("~1", "/").replace("~0", "~");
        let (parent, value) = (pod.pointer_mut(parent).expect("there"), &operation["value"]);
        match (operation["op"].as_str(), parent) {
            (Some("add"), Value::Array(all)) if key == "-" => all.push(value.clone()),
            (Some("remove"), Value::Object(all)) => {
                assert!(all.remove(&key).is_some(), "what is removed is there: {path}");
            }
            (Some("add" | "replace"), parent) => parent[key] = value.clone(),
            _ => panic!("{operation}"),
        }
    }
    pod
}

/// The templates that the pod's claims are made from.
fn templates(pod: &Value) -> Vec<Template> {
    let claims = pod["spec"]["resourceClaims"].as_array().expect("claims");
    let names = claims.iter().filter_map(|it| it["resourceClaimTemplateName"].as_str());
    names.map(|name| Template::of_name(name).expect("a name tells its template")).collect()
}

#[test]
fn limits_become_claims_and_all_else_stays() {
    let mut before = pod(&[
        container("a", &json!("3"), &json!("20")),
        container("plain", &Value::Null, &Value::Null),
        container("b", &json!(5), &Value::Null),
    ]);
    before["metadata"]["annotations"] = json!({ "a": "b" });
    before["spec"]["schedulerName"] = json!("ack-co-scheduler");
    before["spec"]["nodeSelector"] = json!({ "zone": "z" });
    before["spec"]["initContainers"] = json!([container("i", &json!("3"), &json!("20"))]);
    before["spec"]["resourceClaims"] = json!([{ "name": "nic", "resourceClaimName": "n" }]);
    before["spec"]["containers"][2]["resources"]["claims"] = json!([{ "name": "nic" }]);
    let after = patched(&before);
    let mut expected = before.clone();
    let spec = &mut expected["spec"];
    spec["schedulerName"] = json!("default-scheduler");
    let resources = |claims: Value| json!({ "limits": { "cpu": "1" }, "requests": { "cpu": "1" }, "claims": claims });
    let first = resources(json!([{ "name": "gpuslice-c0" }]));
    spec["initContainers"][0]["resources"] = first.clone();
    spec["containers"][0]["resources"] = first;
    spec["containers"][2]["resources"] =
        resources(json!([{ "name": "nic" }, { "name": "gpuslice-c2" }]));
    spec["resourceClaims"] = json!([
        { "name": "nic", "resourceClaimName": "n" },
        { "name": "gpuslice-c0", "resourceClaimTemplateName": "gpuslice-1x-3072mi-20pc" },
        { "name": "gpuslice-c2", "resourceClaimTemplateName": "gpuslice-1x-5120mi-0pc" },
    ]);
    assert_eq!(after, expected);
    let mut of_another = before.clone();
    of_another["spec"]["schedulerName"] = json!("another");
    expected["spec"]["schedulerName"] = json!("another");
    assert_eq!(patched(&of_another), expected, "another scheduler than the chart's stays");
    // Once it is changed, the webhook has nothing to do with it.
    assert_eq!(decide(&after, &settings()), Ok(Vec::new()));
}

#[test]
fn a_template_says_the_amounts_to_the_scheduler() {
    let template = Template { mib: 3072, cores: 20, count: 2 };
    let object = template.object("default", "gpuslice.io");
    assert_eq!(
        object["spec"]["spec"]["devices"]["requests"][0]["exactly"],
        json!({
            "deviceClassName": "gpuslice.io", "allocationMode": "ExactCount", "count": 2,
            "capacity": { "requests": { "memory": "3072Mi", "cores": "20" } },
        })
    );
    let memory = Template { cores: 0, ..template }.object("default", "gpuslice.io");
    let amounts =
        &memory["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"];
    assert_eq!(*amounts, json!({ "memory": "3072Mi" }));
}

#[test]
fn a_name_tells_one_template() {
    for template in
        [Template { mib: 1, cores: 0, count: 1 }, Template { mib: 1 << 24, cores: 100, count: 16 }]
    {
        assert_eq!(Template::of_name(&template.name()), Some(template));
    }
    for other in [
        "",
        "gpu",
        "gpuslice-",
        "gpuslice-1x-3072mi-20",
        "gpuslice-01x-3072mi-20pc",
        "gpuslice-1x-+3072mi-20pc",
        "gpuslice-1x-3072mi-020pc",
        "gpuslice-0x-3072mi-20pc",
        "gpuslice-17x-3072mi-20pc",
        "gpuslice-1x-0mi-20pc",
        "gpuslice-1x-16777217mi-20pc",
        "gpuslice-1x-3072mi-101pc",
        "gpuslice-1x-3072mi-20pc ",
        "gpuslice-1x-99999999999999999999mi-20pc",
    ] {
        assert_eq!(Template::of_name(other), None, "{other:?}");
    }
}

/// Both run one after the other, so the pod needs room for one of them.
#[test]
fn an_init_container_uses_its_successors_claim() {
    let none = Value::Null;
    let main = [container("a", &json!("3"), &none), container("b", &json!("4"), &json!("20"))];
    let mut before = pod(&main);
    before["spec"]["initContainers"] = json!([
        container("same", &json!("3"), &none),
        container("more", &json!("4"), &none),
        container("largest", &json!("5"), &none),
        container("sidecar", &json!("3"), &none),
    ]);
    before["spec"]["initContainers"][3]["restartPolicy"] = json!("Always");
    let after = patched(&before);
    let init = after["spec"]["initContainers"].as_array().expect("a list");
    let used: Vec<&Value> = init.iter().map(|it| &it["resources"]["claims"][0]["name"]).collect();
    assert_eq!(used, ["gpuslice-c0", "gpuslice-c1", "gpuslice-i2", "gpuslice-i3"]);
    let template = |gib: u64, cores| Template { mib: gib << 10, cores, count: 1 };
    let all = [template(5, 0), template(3, 0), template(3, 0), template(4, 20)];
    assert_eq!(templates(&after), all);
    assert_eq!(init[0]["resources"]["limits"], json!({ "cpu": "1" }));
}

#[test]
fn several_gpus_divide_the_amounts() {
    let mut two = pod(&[container("a", &json!("8"), &json!("40"))]);
    two["metadata"]["labels"] = json!({ "aliyun.com/gpu-count": "2" });
    assert_eq!(templates(&patched(&two)), [Template { mib: 4096, cores: 20, count: 2 }]);
    two["metadata"]["labels"]["aliyun.com/gpu-count"] = json!("3");
    let said = decide(&two, &settings()).expect_err("refused").to_string();
    assert!(said.contains("8 of aliyun.com/gpu-mem on 3 GPUs"), "{said}");
    for bad in [json!("0"), json!("17"), json!("-1"), json!("x"), json!(2), json!("")] {
        two["metadata"]["labels"]["aliyun.com/gpu-count"] = bad.clone();
        let said = decide(&two, &settings()).expect_err("refused").to_string();
        assert!(said.contains("must be a number from 1 to 16"), "{bad}: {said}");
    }
}

#[test]
fn bad_pods_are_refused_with_a_sentence() {
    let none = Value::Null;
    for (memory, cores, words) in [
        (&none, &json!("20"), "a share of compute needs memory"),
        (&json!("3"), &json!("120"), "120 percent of compute on one GPU: ask for at most 100"),
        (&json!("-3"), &none, "-3 is no amount"),
        (&json!("1.5"), &none, "1.5 is no amount"),
        (&json!("500m"), &none, "500m is no amount"),
        (&json!("9999999999999999999999"), &none, "is no amount"),
        (&json!("1e300"), &none, "is no amount"),
        (&json!({}), &none, "is no amount"),
        (&json!(["3"]), &none, "is no amount"),
        (&json!("x".repeat(10_000)), &none, "is no amount"),
    ] {
        let said = decide(&pod(&[container("a", memory, cores)]), &settings());
        let said = said.expect_err("refused").to_string();
        assert!(said.contains(words) && said.len() < 300, "{words}: {said}");
    }
    let mut taken = pod(&[container("a", &json!("3"), &none)]);
    taken["spec"]["resourceClaims"] = json!([{ "name": "gpuslice-c0" }]);
    assert!(decide(&taken, &settings()).expect_err("refused").to_string().contains("gpuslice-c0"));
    for (list, odd) in [("containers", json!("x")), ("initContainers", json!({ "a": 1 }))] {
        let mut shape = pod(&[container("a", &json!("3"), &none)]);
        shape["spec"][list] = odd;
        assert!(decide(&shape, &settings()).is_err(), "{list}");
    }
    // What is no pod of ours is not looked at.
    for other in [json!({}), json!(null), json!({ "spec": { "containers": [{}, 5, null] } })] {
        assert_eq!(decide(&other, &settings()), Ok(Vec::new()), "{other}");
    }
}
