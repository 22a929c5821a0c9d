//! Publishing: the node's slice in the API server is kept equal to what the ledger says.
//!
//! The kubelet deletes all slices of its node when it starts, health and fill change, and another program may have
//! changed the object. So each of these events leads to one comparison, and a difference to one write. What the
//! server kept is read back, since one whose feature gate is off drops the decisive fields without an error.

use super::slices::{self, NodeName};
use super::{NAME, uid_of_claim};
use crate::api::client::{Client, status};
use crate::api::objects::{Metadata, Node};
use crate::api::store::{Object, Objects};
use crate::ledger::Ledger;
use crate::place::Placement;
use anyhow::Result;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tracing::{error, info, warn};

/// The collection of slices.
pub const PATH: &str = "/apis/resource.k8s.io/v1/resourceslices";
/// Changes within this time cause one write.
const TOGETHER: Duration = Duration::from_millis(100);
/// Longest time between two comparisons.
const LOOK: Duration = Duration::from_secs(30);
/// Pause after a write that met another.
const CONFLICT_PAUSE: Duration = Duration::from_millis(200);
/// Pause after a failure, and until a gate that is off is tried again.
const PAUSE: Duration = Duration::from_secs(5);
const GATE_PAUSE: Duration = Duration::from_secs(60);

/// A slice as the server has it.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "Value")]
pub struct Slice {
    pub metadata: Metadata,
    pub object: Value,
}

impl From<Value> for Slice {
    fn from(object: Value) -> Slice {
        let metadata = serde_json::from_value(object["metadata"].clone()).unwrap_or_default();
        Slice { metadata, object }
    }
}

impl Object for Slice {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// The path of a watch for a node's slices of this driver.
#[must_use]
pub fn watch_path(node: &str) -> String {
    format!("{PATH}?fieldSelector=spec.driver%3D{NAME}%2Cspec.nodeName%3D{node}")
}

/// What publishing needs.
pub struct Publisher {
    pub node: NodeName,
    pub api: Client,
    pub ledger: Arc<dyn Ledger>,
    pub placement: Placement,
    /// The node's slices of this driver.
    pub slices: watch::Receiver<Objects<Slice>>,
}

impl Publisher {
    /// Publishes until the process ends.
    pub async fn run(mut self) {
        let mut gpus = self.ledger.gpus();
        crate::plugin::server::first_facts(&mut gpus).await;
        // The sender lives as long as this process.
        let _ = self.slices.wait_for(Option::is_some).await;
        loop {
            gpus.mark_unchanged();
            let next = match self.publish().await {
                Ok(true) => LOOK,
                Ok(false) => GATE_PAUSE,
                // The object changed meanwhile; the watch will tell.
                Err(error) if status(&error).is_some_and(|it| it.as_u16() == 409) => CONFLICT_PAUSE,
                Err(error) => {
                    warn!("the node's slice is not published: {error:#}");
                    PAUSE
                }
            };
            if next == LOOK {
                tokio::select! {
                    _ = gpus.changed() => {}
                    _ = self.slices.changed() => {}
                    () = tokio::time::sleep(LOOK) => {}
                }
                tokio::time::sleep(TOGETHER).await;
            } else {
                tokio::time::sleep(next).await;
            }
        }
    }

    /// Compares and writes; false if the server's gate is off and nothing is published.
    async fn publish(&mut self) -> Result<bool> {
        let Some(known) = self.slices.borrow_and_update().clone() else {
            anyhow::bail!("the API server has not told which slices this node has");
        };
        let rows = self.ledger.rows().await?;
        let roots = rows.gpus.iter().filter_map(|gpu| {
            let pci = gpu.pci.as_str();
            pcie_root(Path::new("/sys"), pci).map(|root| (pci.to_owned(), root))
        });
        let roots: BTreeMap<String, String> = roots.collect();
        let wanted = slices::slice(&self.node, &rows, self.placement, &roots);
        let name = slices::name(&self.node.name);
        for other in known.values().filter(|slice| slice.metadata.name != name) {
            self.delete(&other.metadata.name).await?;
        }
        let old = known.values().find(|slice| slice.metadata.name == name);
        if old.is_some_and(|old| slices::covers(&wanted, &old.object)) {
            return Ok(true);
        }
        let kept = self.write(wanted, old).await?;
        if let Err(off) = slices::check_gate(&kept) {
            error!("{off}");
            self.delete(&name).await?;
            return Ok(false);
        }
        let claims = rows.claims.iter().filter(|it| uid_of_claim(it.claim.as_str()).is_some());
        info!(devices = rows.gpus.len(), claims = claims.count(), "published the node's slice");
        Ok(true)
    }

    /// Creates the slice, or replaces it with the next generation.
    async fn write(&self, mut slice: Value, old: Option<&Slice>) -> Result<Value> {
        let Some(old) = old else {
            return self.api.create(PATH, &slice).await;
        };
        let generation = old.object["spec"]["pool"]["generation"].as_i64().unwrap_or(0) + 1;
        slice["spec"]["pool"]["generation"] = json!(generation);
        slice["metadata"]["resourceVersion"] = json!(old.metadata.resource_version);
        self.api.replace(&format!("{PATH}/{}", old.metadata.name), &slice).await
    }

    async fn delete(&self, name: &str) -> Result<()> {
        match self.api.delete(&format!("{PATH}/{name}")).await {
            Err(error) if status(&error).is_none_or(|it| it.as_u16() != 404) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Takes back what this agent published before its node's GPUs were to be offered in another way. A node that never
/// published any has nothing there, and its account may not even look.
pub async fn withdraw(api: &Client, node: &Node) {
    let done = api.delete(&format!("{PATH}/{}", slices::name(&node.metadata.name))).await;
    if let Err(error) = done
        && status(&error).is_none_or(|it| !matches!(it.as_u16(), 403 | 404))
    {
        warn!("the node's slice of dynamic resource allocation stays published: {error:#}");
    }
}

/// The PCIe root complex of a device, as `pci0000:3a`: the first part of its path in the kernel's tree.
fn pcie_root(sys: &Path, address: &str) -> Option<String> {
    let valid = |c: char| c.is_ascii_hexdigit() || c == ':' || c == '.';
    if address.is_empty() || !address.chars().all(valid) {
        return None;
    }
    let link =
        std::fs::canonicalize(sys.join("bus/pci/devices").join(address.to_lowercase())).ok()?;
    let names = link.iter().filter_map(|part| part.to_str());
    names.into_iter().find(|part| part.starts_with("pci") && part.contains(':')).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_root_complex_is_the_first_part_of_the_devices_path() {
        let sys = tempfile::tempdir().expect("a directory");
        let real = "devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0";
        let links = sys.path().join("bus/pci/devices");
        std::fs::create_dir_all(sys.path().join(real)).expect("made");
        std::fs::create_dir_all(&links).expect("made");
        symlink(format!("../../../{real}"), links.join("0000:3b:00.0")).expect("a link");
        let root = |address: &str| pcie_root(sys.path(), address);
        assert_eq!(root("0000:3B:00.0").as_deref(), Some("pci0000:3a"));
        assert_eq!(root("0000:ff:00.0"), None);
        assert_eq!(root("../../../etc"), None);
        assert_eq!(root(""), None);
    }
}
