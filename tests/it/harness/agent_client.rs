//! An agent of a cluster: the node's socket from the other side.

use super::node::Node;
use super::wire::Connection;
use gpuslice_wire::ids::{ContainerId, GpuUuid};
use gpuslice_wire::node::{GpuFacts, GpuList, NodeAnswer, NodeDenial, NodeRequest, Reservation};
use gpuslice_wire::owner::{ClaimId, Owner};
use gpuslice_wire::policy::{Class, Gangs};
use gpuslice_wire::text::Text;
use gpuslice_wire::units::{Bytes, GIB, Percent};

/// A connection of an agent.
pub struct AgentClient(pub Connection);

/// A claim's id.
pub fn claim(id: &str) -> ClaimId {
    ClaimId::new(id).expect("a claim id")
}

/// A container of a pod.
pub fn owner(pod: &str) -> Owner {
    Owner {
        namespace: Text::new("default").expect("short"),
        pod: Text::new(pod).expect("short"),
        uid: Text::new("6f1c9c1e-1111-4222-8333-944455566677").expect("short"),
        container: Text::new("main").expect("short"),
    }
}

/// A reservation of 1 GiB on these GPUs.
pub fn words(id: &str, gpus: &[GpuUuid]) -> Reservation {
    Reservation {
        claim: claim(id),
        owner: owner("web-0"),
        gpus: GpuList::new(gpus).expect("few"),
        memory: Bytes(GIB),
        share: Percent::new(30).ok(),
        share_limit: None,
        weight: None,
        class: Class::Normal,
        gang: Gangs::Auto,
        pinned: None,
    }
}

impl AgentClient {
    /// A new connection to a node's socket, which has had its first answer: it may now be idle.
    pub fn of(node: &Node) -> AgentClient {
        let path = node.runtime_dir().join("node.sock");
        let agent = AgentClient(Connection::connect(&path).expect("the daemon listens"));
        agent.facts();
        agent
    }

    /// Asks, and waits for one answer.
    pub fn ask(&self, request: &NodeRequest) -> NodeAnswer {
        self.0.send(5, request).expect("the daemon reads");
        self.next()
    }

    /// The next message.
    pub fn next(&self) -> NodeAnswer {
        let (id, answer, _) = self.0.message().expect("an answer");
        assert_eq!(id, 5);
        answer
    }

    /// The rows up to their end.
    pub fn rows(&self) -> Vec<NodeAnswer> {
        let mut rows = Vec::new();
        loop {
            match self.next() {
                NodeAnswer::End {} => return rows,
                row => rows.push(row),
            }
        }
    }

    /// All rows.
    pub fn list(&self) -> Vec<NodeAnswer> {
        self.0.send(5, &NodeRequest::List {}).expect("the daemon reads");
        self.rows()
    }

    /// All GPUs.
    pub fn facts(&self) -> Vec<GpuFacts> {
        self.0.send(5, &NodeRequest::Facts {}).expect("the daemon reads");
        let gpu = |row| match row {
            NodeAnswer::Gpu { gpu } => gpu,
            other => panic!("{other:?}"),
        };
        self.rows().into_iter().map(gpu).collect()
    }

    /// The GPUs' identities.
    pub fn gpus(&self) -> Vec<GpuUuid> {
        self.facts().iter().map(|gpu| gpu.uuid).collect()
    }

    /// Reserves, or says why not.
    pub fn reserve(&self, words: Reservation) -> Result<String, (NodeDenial, String)> {
        match self.ask(&NodeRequest::Reserve { words }) {
            NodeAnswer::Reserved { device } => Ok(device.to_string()),
            NodeAnswer::Denied { why, text } => Err((why, text.to_string())),
            other => panic!("{other:?}"),
        }
    }

    /// Releases; returns how many containers still live in the claim.
    pub fn release(&self, id: &str) -> u32 {
        match self.ask(&NodeRequest::Release { claim: claim(id) }) {
            NodeAnswer::Released { members } => members,
            other => panic!("{other:?}"),
        }
    }

    /// The row of a claim, if it has a slice.
    pub fn slice(&self, id: &str) -> Option<NodeAnswer> {
        let own = |row: &NodeAnswer| matches!(row, NodeAnswer::Slice { claim: Some(of), .. } if *of == claim(id));
        self.list().into_iter().find(own)
    }

    /// The containers that live in a claim.
    pub fn members(&self, id: &str) -> Vec<ContainerId> {
        let member = |row| match row {
            NodeAnswer::Member { claim: of, container } if of == claim(id) => Some(container),
            _ => None,
        };
        self.list().into_iter().filter_map(member).collect()
    }
}
