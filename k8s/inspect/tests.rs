//! The tables of the public documents, byte for byte.

use super::nodes::Cluster;
use super::{Extra, details, json, summary};
use crate::api::objects::{List, Node, Pod};
use serde_json::{Value, json};

fn node(name: &str, address: &str, memory: u64, gpus: u64) -> Node {
    let amounts = json!({
        "aliyun.com/gpu-mem": memory.to_string(),
        "aliyun.com/gpu-count": gpus.to_string(),
        "aliyun.com/gpu-core.percentage": (gpus * 100).to_string(),
    });
    serde_json::from_value(json!({
        "metadata": { "name": name },
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "addresses": [
                { "type": "Hostname", "address": name },
                { "type": "InternalIP", "address": address },
            ],
        },
    }))
    .expect("a node")
}

fn pod(name: &str, node: &str, memory: u64, annotations: &Value) -> Pod {
    let limits = json!({
        "aliyun.com/gpu-mem": memory.to_string(), "aliyun.com/gpu-core.percentage": "10"
    });
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "default", "annotations": annotations },
        "spec": { "nodeName": node, "containers": [{ "resources": { "limits": limits } }] },
        "status": { "phase": "Running" },
    }))
    .expect("a pod")
}

fn on(gpu: &str) -> Value {
    json!({ "ALIYUN_COM_GPU_MEM_IDX": gpu })
}

const ZHANGJIAKOU: &str = "cn-zhangjiakou.192.168.66.139";

fn cluster(nodes: Vec<Node>, pods: Vec<Pod>) -> Cluster {
    Cluster::of(&List::of(nodes), &List::of(pods))
}

/// Words and the line of dashes as in the document, which has lost its columns.
fn words(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn the_documents_tables_are_printed() {
    let nodes = || vec![node(ZHANGJIAKOU, "192.168.66.139", 15, 1)];
    let empty = summary::render(&cluster(nodes(), vec![]), Extra::default());
    let expected = [
        "NAME IPADDRESS GPU0(Allocated/Total) GPU Memory(GiB)",
        "cn-zhangjiakou.192.168.66.139 192.168.66.139 0/15 0/15",
        "---------------------------------------------------------------------------",
        "Allocated/Total GPU Memory In Cluster:",
        "0/15 (0%)",
    ];
    assert_eq!(words(&empty), expected);
    let pods = vec![pod("gpu-share-sample", ZHANGJIAKOU, 3, &on("0"))];
    let used = summary::render(&cluster(nodes(), pods), Extra::default());
    let bytes = "\
NAME                           IPADDRESS       GPU0(Allocated/Total)  GPU Memory(GiB)
cn-zhangjiakou.192.168.66.139  192.168.66.139  3/15                   3/15
---------------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
3/15 (20%)  \n";
    assert_eq!(used, bytes);
}

#[test]
fn details_list_pods() {
    let pods = vec![
        pod("b", "n1", 4, &on("1")),
        pod("app-3g-v1-0", "n1", 4, &on("0")),
        pod("lost", "n1", 2, &json!({})),
    ];
    let cluster = cluster(vec![node("n1", "10.0.0.1", 30, 2)], pods);
    let bytes = "
NAME:       n1
IPADDRESS:  10.0.0.1

NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  Pending(Allocated)  \n\
app-3g-v1-0  default    4                0                0                   \n\
b            default    0                4                0                   \n\
lost         default    0                0                2                   \n\
Allocated :  10 (33%)   \n\
Total :      30         \n\
--------------------------------------------------------------------------


Allocated/Total GPU Memory In Cluster:  10/30 (33%)  \n";
    assert_eq!(details::render(&cluster, Extra::default()), bytes);
}

#[test]
fn nodes_have_a_stable_order_and_their_own_number_of_gpus() {
    let nodes = || {
        let mut told = node("a", "10.0.0.1", 32552, 2);
        let usage = json!({ "0": { "usedMib": 1024, "claims": 2 }, "1": { "usedMib": 64 } });
        told.metadata.annotations.insert("gpuslice.io/usage".to_owned(), usage.to_string());
        vec![node("b", "10.0.0.2", 16276, 1), told, {
            let mut other = node("none", "10.0.0.3", 15, 1);
            other.status.allocatable.clear();
            other
        }]
    };
    let pods = || vec![pod("p", "a", 1024, &on("7")), pod("q", "b", 512, &on("0"))];
    let text = summary::render(&cluster(nodes(), pods()), Extra { more: true });
    let bytes = "\
NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  PENDING(Allocated)  CORES(Allocated/Total)  CLAIMS  USED(MiB)  GPU Memory(MiB)
a     10.0.0.1   0/16276                0/16276                1024                10/200                  2       1088       1024/32552
b     10.0.0.2   512/16276              0/0                                        10/100                  -       -          512/16276
-----------------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
1536/48828 (3%)  \n";
    assert_eq!(text, bytes);
    let reversed = cluster(nodes().into_iter().rev().collect(), pods());
    assert_eq!(summary::render(&reversed, Extra { more: true }), text);
}

#[test]
fn pods_that_ended_and_lying_annotations_count_for_nothing() {
    let mut ended = pod("ended", "n1", 4, &on("0"));
    ended.status.phase = "Succeeded".to_owned();
    let all = r#"{"0":{"0":2,"1":3}}"#;
    let both = pod("both", "n1", 5, &json!({ "scheduler.framework.gpushare.allocation": all }));
    let odd = pod("odd", "n1", 1, &on("first"));
    let cluster = cluster(vec![node("n1", "10.0.0.1", 282, 2)], vec![ended, both, odd]);
    assert_eq!(cluster.unit(), "GiB", "an H200 has 141 GiB");
    let json = json::of(&cluster);
    assert_eq!(json["nodes"][0]["usedGPU"], 6);
    let devices: Vec<String> =
        json["nodes"][0]["devs"].as_array().expect("GPUs").iter().map(Value::to_string).collect();
    assert!(
        devices[1].contains(r#""id":1"#) && devices[1].contains(r#""usedGPU":3"#),
        "{devices:?}"
    );
    assert!(devices[2].contains(r#""id":-1"#) && devices[2].contains("odd"), "{devices:?}");
    let empty = Cluster::default();
    assert!(summary::render(&empty, Extra::default()).ends_with("0/0 (0%)  \n"));
}
