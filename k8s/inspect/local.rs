//! The same tables from the node alone: the ledger's claims and slices in place of the API server's pods.
//!
//! The ledger counts bytes, and the tables count units, as the node's agent offers them to the cluster. A claim's cap
//! is its part of the physical memory; the number of units is that part again.

use super::nodes::{Cluster, Shared, Tenant};
use super::usage;
use crate::ledger::Rows;
use crate::plugin::devices::{Inventory, Unit};
use gpuslice_wire::owner::Owner;
use gpuslice_wire::units::Bytes;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The namespace of a slice that is no pod's.
const NONE: &str = "-";

/// A cluster of this node.
#[must_use]
pub fn cluster(rows: &Rows, name: String, address: Option<String>, unit: Unit) -> Cluster {
    let inventory = Inventory::of(&rows.gpus, unit);
    let mut tenants: BTreeMap<(String, String), Tenant> = BTreeMap::new();
    let mut add = |owner: &Owner, other: &str, gpus: &[u8], memory: Bytes, cores: u64| {
        let is_pods = !owner.pod.as_str().is_empty();
        let key = match is_pods {
            true => (owner.namespace.as_str().to_owned(), owner.pod.as_str().to_owned()),
            false => (NONE.to_owned(), other.to_owned()),
        };
        let (namespace, name) = key.clone();
        let tenant = tenants.entry(key).or_insert(Tenant { name, namespace, ..Tenant::default() });
        tenant.cores += cores * gpus.len() as u64;
        for card in inventory.cards.iter().filter(|card| gpus.contains(&card.number)) {
            let entry = tenant.memory.entry(Some(u64::from(card.index))).or_default();
            *entry += card.units_of(memory);
        }
    };
    for row in &rows.claims {
        let cores = row.share.map_or(0, |share| u64::from(share.get()));
        add(&row.owner, row.claim.as_str(), &row.gpus, row.memory, cores);
    }
    for row in &rows.own {
        let cores = row.share.map_or(0, |share| u64::from(share.get()));
        add(&row.owner, &row.name, &row.gpus, row.memory, cores);
    }
    let gpus = inventory.cards.len() as u64;
    let health = rows.gpus.iter().map(|gpu| (u64::from(gpu.index.0), gpu.health));
    let node = Shared {
        name,
        address,
        gpus,
        memory: inventory.cards.iter().map(|card| card.units).sum(),
        cores: gpus * 100,
        tenants: tenants.into_values().collect(),
        usage: usage::of_rows(rows),
        health: health.collect(),
    };
    Cluster { nodes: vec![node] }
}

/// This machine's name, and its first address that other machines can reach.
#[must_use]
pub fn identity() -> (String, Option<String>) {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let addresses = nix::ifaddrs::getifaddrs().into_iter().flatten().filter_map(|it| it.address);
    let ips = addresses.filter_map(|it| match (it.as_sockaddr_in(), it.as_sockaddr_in6()) {
        (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
        (None, v6) => v6.map(|it| IpAddr::V6(it.ip())),
    });
    let address = reachable(ips);
    (name.unwrap_or_else(|| "localhost".to_owned()), address.map(|ip| ip.to_string()))
}

/// The first address of IPv4 that other machines can reach, else the first of IPv6.
fn reachable(ips: impl Iterator<Item = IpAddr>) -> Option<IpAddr> {
    let near = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
    };
    ips.filter(|ip| !near(ip)).min_by_key(IpAddr::is_ipv6)
}

#[cfg(test)]
mod tests {
    use super::super::{Extra, details, json, summary};
    use super::*;
    use crate::api::objects::List;
    use crate::ledger::{Claimed, Own};
    use crate::testing::{self, gpu};
    use gpuslice_wire::node::HealthState;
    use gpuslice_wire::owner::ClaimId;
    use gpuslice_wire::text::Text;
    use gpuslice_wire::units::Percent;
    use serde_json::json;

    fn rows() -> Rows {
        let mib = |mib: u64| Bytes(mib << 20);
        let mut gpus: Vec<_> = (0..2).map(|number| gpu(number, mib(15079))).collect();
        (gpus[0].promised, gpus[0].share_promised) = (mib(3231), 20);
        let owner = Owner {
            namespace: Text::new("default").expect("short"),
            pod: Text::new("gpu-share-sample").expect("short"),
            ..Owner::default()
        };
        let claims = vec![Claimed {
            claim: ClaimId::new("u-c0").expect("an id"),
            owner,
            gpus: vec![0],
            memory: mib(3231),
            used: mib(1000),
            share: Percent::new(20).ok(),
            released: false,
            members: Vec::new(),
        }];
        let own = vec![Own {
            name: "web".to_owned(),
            owner: Owner::default(),
            gpus: vec![0, 1],
            memory: mib(2048),
            used: mib(600),
            share: None,
        }];
        Rows { gpus, claims, own }
    }

    #[test]
    fn a_node_without_ipv4_has_an_address() {
        let first = |ips: &[&str]| {
            let ips = ips.iter().map(|it| it.parse().expect("an address"));
            reachable(ips).map(|ip| ip.to_string())
        };
        let v6 = ["127.0.0.1", "::1", "fe80::1", "fd00::1", "fd00::2"];
        assert_eq!(first(&v6).as_deref(), Some("fd00::1"));
        let both = ["fd00::1", "169.254.0.1", "10.0.0.1", "10.0.0.2"];
        assert_eq!(first(&both).as_deref(), Some("10.0.0.1"));
        assert_eq!(first(&v6[..3]), None);
    }

    #[test]
    fn a_node_prints_the_same_tables() {
        let unit: Unit = "GiB".parse().expect("a unit");
        let cluster = cluster(&rows(), "node-1".to_owned(), Some("10.0.0.1".to_owned()), unit);
        let bytes = "\
NAME    IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)
node-1  10.0.0.1   5/14                   2/14                   7/28
---------------------------------------------------
Allocated/Total GPU Memory In Cluster:
7/28 (25%)  \n";
        assert_eq!(summary::render(&cluster, Extra::default()), bytes);
        let details = details::render(&cluster, Extra::default());
        assert!(details.contains("web               -          2                2"), "{details}");
        assert!(details.contains("gpu-share-sample  default    3                0"), "{details}");
        let wide = summary::render(&cluster, Extra { more: true });
        let rows: Vec<Vec<&str>> =
            wide.lines().take(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0][4..7], ["CORES(Allocated/Total)", "CLAIMS", "USED(MiB)"]);
        // 1000 and half of 600 MiB, in steps of 64.
        assert_eq!(rows[1][4..7], ["20/200", "1", "1664"], "{wide}");
        assert_eq!(json::of(&cluster)["nodes"][0]["devs"][0]["usedMiB"], 1344);
    }

    /// One pod as its node's ledger has it, and as the API server does.
    #[test]
    fn a_pod_has_the_same_lines_from_both() {
        let (mut rows, unit) = (rows(), "GiB".parse().expect("a unit"));
        rows.own.clear();
        let ours = super::cluster(&rows, "node-1".to_owned(), Some("10.0.0.1".to_owned()), unit);
        let amounts = json!({
            "aliyun.com/gpu-mem": "28", "aliyun.com/gpu-count": "2", "aliyun.com/gpu-core.percentage": "200",
        });
        let node = json!({
            "metadata": {
                "name": "node-1",
                "annotations": { usage::ANNOTATION: usage::text(&usage::of_rows(&rows)) },
            },
            "status": {
                "capacity": amounts, "allocatable": amounts,
                "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }],
            },
        });
        let mut pod = testing::pod("gpu-share-sample", &[], &[testing::container("main", 3, 20)]);
        pod.spec.node_name = "node-1".to_owned();
        let annotations = &mut pod.metadata.annotations;
        annotations.insert("ALIYUN_COM_GPU_MEM_IDX".to_owned(), "0".to_owned());
        let node = serde_json::from_value(node).expect("a node");
        let theirs = Cluster::of(&List::of(vec![node]), &List::of(vec![pod]));
        for more in [false, true].map(|more| Extra { more }) {
            assert_eq!(summary::render(&ours, more), summary::render(&theirs, more));
            assert_eq!(details::render(&ours, more), details::render(&theirs, more));
        }
    }

    #[test]
    fn a_gpu_that_takes_no_slices_has_a_line_and_a_field() {
        let mut rows = rows();
        rows.gpus[1].health.state = HealthState::Mig;
        let unit: Unit = "GiB".parse().expect("a unit");
        let cluster = cluster(&rows, "node-1".to_owned(), None, unit);
        let more = Extra::default();
        for text in [summary::render(&cluster, more), details::render(&cluster, more)] {
            assert!(text.ends_with("\nGPU1: MIG mode, no slices\n"), "{text}");
        }
        let devices = &json::of(&cluster)["nodes"][0]["devs"];
        assert_eq!(
            (&devices[0]["health"], &devices[1]["health"]),
            (&"healthy".into(), &"mig".into())
        );
    }
}
