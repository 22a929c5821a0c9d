//! What the node's labels ask for, at the start and while the agent runs.

use super::exclusive::Foreign;
use super::mode::{self, Mode};
use crate::api::client::Client;
use crate::api::event::Warning;
use crate::api::objects::Node;
use crate::api::store::Objects;
use crate::names;
use crate::place::Placement;
use anyhow::{Context, Result};
use serde_json::json;
use std::collections::BTreeMap;
use tokio::sync::watch;
use tracing::{error, info, warn};

/// The event's reason.
const REASON: &str = "GPUModeUnknown";

/// What the command line asks for; it goes before the labels.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    pub mode: Option<Mode>,
    pub placement: Option<Placement>,
}

/// How GPUs are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offered {
    pub mode: Mode,
    pub placement: Placement,
}

impl Offered {
    /// What becomes of GPUs with another owner.
    pub fn foreign(self) -> Foreign {
        match self.mode {
            Mode::Dra => Foreign::Hidden,
            _ => Foreign::Unhealthy,
        }
    }
}

impl Asked {
    /// The same with what these labels say.
    pub fn by(self, labels: &BTreeMap<String, String>) -> Result<Offered> {
        let mode = self.mode.map_or_else(|| mode::of_labels(labels), Ok)?;
        let placement = self.placement.map_or_else(|| placement_of(labels), Ok)?;
        Ok(Offered { mode, placement })
    }
}

fn placement_of(labels: &BTreeMap<String, String>) -> Result<Placement> {
    let Some(text) = labels.get(names::PLACEMENT) else { return Ok(Placement::default()) };
    text.parse().map_err(anyhow::Error::msg).context("the node's label ack.node.gpu.placement")
}

/// Waits until the labels ask for something else. Labels that ask for nothing that is known change nothing, and the
/// node's events say so.
pub async fn changed(
    api: &Client,
    name: &str,
    asked: Asked,
    now: Offered,
    mut nodes: watch::Receiver<Objects<Node>>,
) {
    let mut complaint = None;
    loop {
        let known = nodes.borrow_and_update().clone();
        let node = known.iter().flat_map(|all| all.values()).find(|it| it.metadata.name == name);
        match node.map(|node| asked.by(&node.metadata.labels)) {
            Some(Ok(other)) if other != now => {
                info!(mode = ?other.mode, placement = ?other.placement, "the node's labels have changed");
                return;
            }
            Some(Err(why)) => {
                let why = format!("{why:#}");
                if complaint.as_ref() != Some(&why) {
                    error!("{why}; GPUs are offered as before: {:?}", now.mode);
                    complain(api, name, &why).await;
                    complaint = Some(why);
                }
            }
            _ => complaint = None,
        }
        // The sender lives as long as this process.
        let _ = nodes.changed().await;
    }
}

async fn complain(api: &Client, name: &str, why: &str) {
    let short: String = name.chars().take(180).collect();
    let digest =
        why.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let warning = Warning {
        object: json!({ "apiVersion": "v1", "kind": "Node", "name": name, "uid": name }),
        name: format!("{short}.mode-{digest:08x}"),
        reason: REASON,
        message: format!("{why}; GPUs are offered as before"),
        component: super::COMPONENT,
        instance: name,
    };
    if let Err(why) = warning.write(api).await {
        warn!("the event of node {name} is not written: {why:#}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An option is what its administrator wants; a label may be another cluster's.
    #[test]
    fn an_option_goes_before_a_label_even_where_that_is_not_known() {
        let labels =
            |value: &str| BTreeMap::from([(names::PLACEMENT.to_owned(), value.to_owned())]);
        let mode = Some(Mode::Off);
        let by = |placement, value| Asked { mode, placement }.by(&labels(value));
        let placed = |placement, value| by(placement, value).expect("known").placement;
        assert_eq!(placed(None, "spread"), Placement::Spread);
        assert_eq!(placed(Some(Placement::Binpack), "spread"), Placement::Binpack);
        assert_eq!(placed(Some(Placement::Spread), "tight"), Placement::Spread);
        let why = format!("{:#}", by(None, "tight").expect_err("unknown"));
        assert!(why.starts_with("the node's label ack.node.gpu.placement: \"tight\""), "{why}");
    }
}
