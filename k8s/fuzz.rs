//! Fuzz targets: what users, schedulers and kubelets write, up to the decision.

use crate::api::objects::{Node as NodeObject, Pod};
use crate::api::quantity::Quantity;
use crate::dra::NAME;
use crate::dra::claim::{self, AllocatedDevice};
use crate::extender::cluster;
use crate::kubelet::pod_resources::ListResponse;
use crate::ledger::Rows;
use crate::names::ResourceNames;
use crate::place::Placement;
use crate::plugin::decide::{Node, decide};
use crate::plugin::devices::{Inventory, Resource, Unit};
use crate::plugin::identity::containers;
use crate::testing::gpu;
use crate::webhook::decide::{Settings, decide as change};
use gpuslice_wire::units::Bytes;
use prost::Message;
use serde_json::Value;

fn rows() -> Rows {
    Rows {
        gpus: (0..4).map(|number| gpu(number, Bytes(16 << 30))).collect(),
        claims: Vec::new(),
        own: Vec::new(),
    }
}

fn readable(why: &dyn std::fmt::Display) {
    let text = why.to_string();
    assert!(!text.is_empty());
}

/// An amount that is printed is read again as the same.
#[test]
fn quantities() {
    gpuslice_fuzz::fuzz!("quantities", |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        match text.parse::<Quantity>() {
            Ok(amount) => {
                let again = amount.to_string().parse::<Quantity>().expect("printed");
                assert_eq!(again.value(), amount.value(), "{amount}");
            }
            Err(why) => readable(&why),
        }
    });
}

/// No pod gets more units than a GPU has, nor the same GPU twice.
#[test]
fn pods() {
    let (rows, names) = (rows(), ResourceNames::default());
    let inventory = Inventory::of(&rows.gpus, Unit(Bytes(1 << 30)));
    gpuslice_fuzz::fuzz!("pods", |bytes| {
        let Ok(pod) = serde_json::from_slice::<Pod>(bytes) else { return };
        for placement in [Placement::Binpack, Placement::Spread] {
            let node = Node { inventory: &inventory, rows: &rows, names: &names, placement };
            for admitted in containers(&pod) {
                match decide(&node, &admitted) {
                    Ok(decision) => {
                        let mut cards = decision.cards.clone();
                        cards.sort_unstable();
                        cards.dedup();
                        assert_eq!(cards.len(), decision.cards.len());
                        assert!(cards.iter().all(|&card| card < 4));
                        assert!(decision.units <= 16 && decision.cores <= 100);
                    }
                    Err(why) => readable(&why),
                }
            }
        }
    });
}

#[test]
fn device_ids() {
    let rows = rows();
    let inventory = Inventory::of(&rows.gpus, Unit(Bytes(1 << 30)));
    gpuslice_fuzz::fuzz!("device-ids", |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        let ids: Vec<String> = text.lines().map(str::to_owned).collect();
        for resource in [Resource::Memory, Resource::Cores] {
            match inventory.cards_of(resource, &ids) {
                Ok(cards) => assert!(cards.iter().all(|&card| card < 4)),
                Err(why) => readable(&why),
            }
        }
    });
}

/// Each result of a claim is in one reservation, and no reservation names a GPU twice.
#[test]
fn claims() {
    let rows = rows();
    gpuslice_fuzz::fuzz!("claims", |bytes| {
        let Ok(claim) = serde_json::from_slice(bytes) else { return };
        match claim::groups(&claim, "u1", "n1", &rows) {
            Ok(groups) => {
                let mut results: Vec<usize> =
                    groups.iter().flat_map(|group| group.results.clone()).collect();
                let ours =
                    |all: &[AllocatedDevice]| all.iter().filter(|one| one.driver == NAME).count();
                let devices = claim.status.allocation.as_ref().map(|it| &it.devices.results);
                assert_eq!(results.len(), devices.map_or(0, |all| ours(all)));
                results.sort_unstable();
                results.dedup();
                assert_eq!(
                    results.len(),
                    groups.iter().map(|group| group.results.len()).sum::<usize>()
                );
                for group in &groups {
                    let gpus = group.words.gpus.as_slice();
                    assert!((0..gpus.len()).all(|at| !gpus[..at].contains(&gpus[at])));
                    assert!(group.words.memory.0 > 0);
                }
            }
            Err(why) => readable(&why),
        }
    });
}

#[test]
fn reviews() {
    let settings = Settings {
        names: ResourceNames::default(),
        unit: "GiB".parse().expect("a unit"),
        class: "gpuslice.io".to_owned(),
        scheduler: "ack-co-scheduler".to_owned(),
    };
    gpuslice_fuzz::fuzz!("reviews", |bytes| {
        let Ok(pod) = serde_json::from_slice::<Value>(bytes) else { return };
        if let Err(why) = change(&pod, &settings) {
            readable(&why);
        }
    });
}

#[test]
fn nodes_and_pods_of_a_cluster() {
    gpuslice_fuzz::fuzz!("cluster", |bytes| {
        let Ok((node, pods)) = serde_json::from_slice::<(NodeObject, Vec<Pod>)>(bytes) else {
            return;
        };
        let shared = cluster::shared(&node, &pods, None);
        for pod in &pods {
            if let Ok(chosen) = shared.choose(pod) {
                assert!(!chosen.is_empty());
            }
        }
        let _ = shared.inspect();
    });
}

#[test]
fn pod_resources() {
    gpuslice_fuzz::fuzz!("pod-resources", |bytes| {
        if let Ok(list) = ListResponse::decode(bytes) {
            assert_eq!(ListResponse::decode(&*list.encode_to_vec()), Ok(list));
        }
    });
}
