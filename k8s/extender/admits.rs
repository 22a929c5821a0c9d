//! What a scheduler checks beside GPUs before it binds a pod, as far as a wrong answer would harm other pods' owners.
//!
//! A scheduler has checked all of this when it asks to bind. But the extender's port is open to more than schedulers:
//! what asks to bind a pod may want it on a node that was closed to it.

use crate::api::objects::{Node, Pod, Taint, Toleration};
use crate::names::{MEMORY, ResourceNames};
use crate::plugin::identity::{self, Need};

/// Why a pod is not bound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    #[error("the pod is bound to the node {0} already")]
    Bound(String),
    #[error("the pod is being deleted")]
    Deleted,
    #[error(
        "the pod's scheduler is {0:?}, and this extender serves {1}; see --scheduler of gpuslice-k8s extender"
    )]
    Scheduler(String, String),
    #[error("the pod asks for no {MEMORY}, so its own scheduler binds it")]
    NoRequest,
    #[error("the node {node} has the taint {taint}, which the pod does not tolerate")]
    Taint { node: String, taint: String },
    #[error("the node {node} has no label {label}, which the pod's nodeSelector names")]
    Selector { node: String, label: String },
}

/// Whether a pod may be bound for one of these schedulers.
///
/// # Errors
/// [`Forbidden`].
pub fn check_pod(pod: &Pod, schedulers: &[String]) -> Result<(), Forbidden> {
    if !pod.spec.node_name.is_empty() {
        return Err(Forbidden::Bound(pod.spec.node_name.clone()));
    }
    if !pod.metadata.deletion_timestamp.is_empty() || pod.ended() {
        return Err(Forbidden::Deleted);
    }
    if !schedulers.contains(&pod.spec.scheduler_name) {
        let served = schedulers.join(", ");
        return Err(Forbidden::Scheduler(pod.spec.scheduler_name.clone(), served));
    }
    if identity::need(pod, ResourceNames::usual()) == Need::default() {
        return Err(Forbidden::NoRequest);
    }
    Ok(())
}

/// Whether a node is open to a pod.
///
/// # Errors
/// [`Forbidden`].
pub fn check_node(node: &Node, pod: &Pod) -> Result<(), Forbidden> {
    let name = || node.metadata.name.clone();
    let closed = |taint: &&Taint| {
        let hard = matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        hard && !pod.spec.tolerations.iter().any(|it| tolerates(it, taint))
    };
    if let Some(taint) = node.spec.taints.iter().find(closed) {
        let taint = format!("{}={}:{}", taint.key, taint.value, taint.effect);
        return Err(Forbidden::Taint { node: name(), taint });
    }
    let lacks = |label: &(&String, &String)| node.metadata.labels.get(label.0) != Some(label.1);
    match pod.spec.node_selector.iter().find(lacks) {
        Some((key, value)) => {
            Err(Forbidden::Selector { node: name(), label: format!("{key}={value}") })
        }
        None => Ok(()),
    }
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let any = |text: &str, other: &str| text.is_empty() || text == other;
    let value = match toleration.operator.as_str() {
        "" | "Equal" => toleration.value == taint.value,
        // `Exists`; operators of later releases compare the value, and the scheduler has done so.
        _ => true,
    };
    any(&toleration.effect, &taint.effect) && any(&toleration.key, &taint.key) && value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{container, pod};
    use serde_json::json;

    fn wants(memory: u64) -> Pod {
        let mut pod = pod("p", &[], &[container("main", memory, 0)]);
        pod.spec.node_name.clear();
        pod.spec.scheduler_name = "ack-co-scheduler".to_owned();
        pod
    }

    #[test]
    fn only_unbound_pods_of_the_scheduler_with_our_resources() {
        let ours = ["ack-co-scheduler".to_owned()];
        assert_eq!(check_pod(&wants(3), &ours), Ok(()));
        let refused = |change: fn(&mut Pod)| {
            let mut pod = wants(3);
            change(&mut pod);
            check_pod(&pod, &ours).expect_err("refused").to_string()
        };
        assert!(refused(|it| it.spec.node_name = "n9".to_owned()).contains("bound to the node n9"));
        assert!(
            refused(|it| it.metadata.deletion_timestamp = "now".to_owned()).contains("deleted")
        );
        let other = refused(|it| it.spec.scheduler_name = "default-scheduler".to_owned());
        assert!(other.contains("\"default-scheduler\", and this extender serves ack-co-scheduler"));
        assert_eq!(check_pod(&wants(0), &ours), Err(Forbidden::NoRequest));
    }

    #[test]
    fn a_node_that_is_closed_to_the_pod() {
        let node: Node = serde_json::from_value(json!({
            "metadata": { "name": "n", "labels": { "zone": "a" } },
            "spec": { "taints": [
                { "key": "soft", "effect": "PreferNoSchedule" },
                { "key": "team", "value": "red", "effect": "NoSchedule" },
            ] },
        }))
        .expect("a node");
        let with = |spec: serde_json::Value| {
            let mut pod = wants(3);
            pod.spec.tolerations =
                serde_json::from_value(spec["tolerations"].clone()).unwrap_or_default();
            pod.spec.node_selector =
                serde_json::from_value(spec["nodeSelector"].clone()).unwrap_or_default();
            check_node(&node, &pod).map_err(|error| error.to_string())
        };
        assert!(with(json!({})).expect_err("closed").contains("the taint team=red:NoSchedule"));
        for (toleration, open) in [
            (json!({ "key": "team", "value": "red" }), true),
            (json!({ "key": "team", "operator": "Equal", "value": "blue" }), false),
            (json!({ "key": "team", "operator": "Exists" }), true),
            (json!({ "key": "team", "operator": "Exists", "effect": "NoExecute" }), false),
            (json!({ "operator": "Exists" }), true),
            (json!({ "key": "other", "operator": "Exists" }), false),
        ] {
            let found = with(json!({ "tolerations": [toleration] }));
            assert_eq!(found.is_ok(), open, "{toleration}: {found:?}");
        }
        let any = json!([{ "operator": "Exists" }]);
        let zone =
            |zone: &str| with(json!({ "tolerations": any, "nodeSelector": { "zone": zone } }));
        assert_eq!(zone("a"), Ok(()));
        assert!(zone("b").expect_err("another").contains("no label zone=b"));
    }
}
