//! The templates that claims of pods are made from.
//!
//! A template is made for a pod that exists, and not for a review: anything that reaches the webhook's port can send a
//! review, of any namespace, but only the API server stores pods. The cluster tries to make a pod's claim until the
//! template is there, so the pod only waits a moment longer. A template belongs to the pod that it was made for, and
//! the cluster deletes it with that pod. If another pod needs it then, it is made again.

use super::decide::Template;
use crate::api::client::{Client, status};
use crate::api::event::Warning;
use crate::api::objects::{Namespace, Pod};
use crate::api::pages::escaped;
use crate::api::store::{self, Objects};
use crate::dra::slices::covers;
use anyhow::Result;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::watch;
use tracing::{info, warn};

/// Changes of pods within this time cause one search.
const TOGETHER: Duration = Duration::from_millis(50);
/// Longest time between two searches: a template may be deleted while a pod waits for it.
const LOOK: Duration = Duration::from_secs(5);
/// The reason of the event of a pod whose template is another's.
const REASON: &str = "GPUClaimTemplateDiffers";

/// What is needed to make templates.
pub struct Templates {
    pub api: Client,
    /// The class of the devices.
    pub class: String,
    /// Label selector of the namespaces whose pods get claims.
    pub namespaces: String,
}

impl Templates {
    /// Makes templates until the process ends.
    pub async fn run(&self) {
        let (pods_copy, mut pods) = watch::channel(None);
        let (spaces_copy, mut spaces) = watch::channel(None);
        // A pod with a node has its claims.
        let waiting = "/api/v1/pods?fieldSelector=spec.nodeName%3D".to_owned();
        let labelled = format!("/api/v1/namespaces?labelSelector={}", escaped(&self.namespaces));
        let make = async {
            loop {
                let known = (pods.borrow_and_update().clone(), spaces.borrow_and_update().clone());
                self.make_all(known).await;
                tokio::select! {
                    _ = pods.changed() => {}
                    _ = spaces.changed() => {}
                    () = tokio::time::sleep(LOOK) => {}
                }
                tokio::time::sleep(TOGETHER).await;
            }
        };
        tokio::select! {
            () = store::keep(self.api.clone(), waiting, pods_copy) => {}
            () = store::keep(self.api.clone(), labelled, spaces_copy) => {}
            () = make => {}
        }
    }

    async fn make_all(&self, known: (Objects<Pod>, Objects<Namespace>)) {
        let (Some(pods), Some(spaces)) = known else {
            return;
        };
        let spaces = spaces.values().map(|it| it.metadata.name.as_str()).collect();
        for ((namespace, template), pod) in wanted(pods.values(), &spaces) {
            if let Err(error) = self.make(namespace, &template, pod).await {
                warn!(
                    namespace,
                    name = template.name(),
                    "no template for pod {}: {error:#}",
                    pod.metadata.name
                );
            }
        }
    }

    /// Makes a template, unless it is there.
    async fn make(&self, namespace: &str, template: &Template, pod: &Pod) -> Result<()> {
        let path =
            format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates");
        let mut object = template.object(namespace, &self.class);
        let (name, uid) = (&pod.metadata.name, &pod.metadata.uid);
        let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid });
        object["metadata"]["ownerReferences"] = json!([owner]);
        match self.api.create(&path, &object).await {
            Ok(_) => {
                info!(namespace, name = template.name(), pod = name, "made a template of claims")
            }
            Err(error) if status(&error).is_some_and(|it| it.as_u16() == 409) => {
                let kept: Value = self.api.get(&format!("{path}/{}", template.name())).await?;
                if !covers(&object["spec"], &kept["spec"]) {
                    differs(namespace, template, pod).write(&self.api).await?;
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// The templates that pods without claims wait for, by namespace, each with one of its pods.
fn wanted<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    namespaces: &BTreeSet<&str>,
) -> BTreeMap<(&'a str, Template), &'a Pod> {
    let mut all = BTreeMap::new();
    for pod in pods {
        let namespace = pod.metadata.namespace.as_str();
        if pod.ended() || !pod.spec.node_name.is_empty() || !namespaces.contains(namespace) {
            continue;
        }
        let made = |name: &str| pod.status.resource_claim_statuses.iter().any(|it| it.name == name);
        for claim in pod.spec.resource_claims.iter().filter(|it| !made(&it.name)) {
            if let Some(template) = Template::of_name(&claim.resource_claim_template_name) {
                all.entry((namespace, template)).or_insert(pod);
            }
        }
    }
    all
}

/// A template's name tells its words. One of the same name with other words is another's, and is left alone.
fn differs<'a>(namespace: &str, template: &Template, pod: &Pod) -> Warning<'a> {
    let (name, pod) = (template.name(), &pod.metadata);
    let short: String = pod.name.chars().take(160).collect();
    Warning {
        object: json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": pod.name, "uid": pod.uid,
        }),
        name: format!("{short}.template-{}", pod.uid.chars().take(36).collect::<String>()),
        reason: REASON,
        message: format!(
            "the ResourceClaimTemplate {name} exists with other words than its name tells; delete it and the pod"
        ),
        component: "gpuslice.io/webhook",
        instance: "gpuslice-webhook",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, template: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "p", "namespace": namespace, "uid": "u" },
            "spec": { "resourceClaims": [{ "name": "gpuslice-c0", "resourceClaimTemplateName": template }] },
        }))
        .expect("a pod")
    }

    #[test]
    fn pods_that_wait_for_their_claims_want_templates() {
        let name = "gpuslice-1x-3072mi-20pc";
        let count = |pods: &[Pod]| wanted(pods, &["a", "b"].into()).len();
        assert_eq!(count(&[pod("a", name), pod("a", name), pod("b", name)]), 2, "one a namespace");
        assert_eq!(count(&[pod("c", name)]), 0, "a namespace without the label");
        assert_eq!(
            count(&[pod("a", "gpuslice-01x-3072mi-20pc"), pod("a", "mine"), pod("a", "")]),
            0
        );
        let changed = |change: fn(&mut Pod)| {
            let mut one = pod("a", name);
            change(&mut one);
            count(&[one])
        };
        assert_eq!(changed(|it| it.spec.node_name = "n".to_owned()), 0);
        assert_eq!(changed(|it| it.status.phase = "Failed".to_owned()), 0);
        let made = |it: &mut Pod| {
            let claim = crate::api::objects::ClaimName { name: "gpuslice-c0".to_owned() };
            it.status.resource_claim_statuses = vec![claim];
        };
        assert_eq!(changed(made), 0, "its claim was made");
    }
}
