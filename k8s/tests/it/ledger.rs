//! The daemon's ledger as a model: what `node.sock` promises, without a daemon.

use gpuslice_k8s::ledger::{Claimed, Ledger, LedgerError, Rows};
use gpuslice_wire::ids::{ContainerId, GpuUuid, NvmlIndex};
use gpuslice_wire::limits::GPUS_MAX;
use gpuslice_wire::node::{GpuFacts, Health, HealthState, NodeDenial, Numa, Reservation};
use gpuslice_wire::owner::ClaimId;
use gpuslice_wire::policy::Policy;
use gpuslice_wire::text::Text;
use gpuslice_wire::units::Bytes;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// A ledger in this process.
pub struct Model {
    claims: Mutex<Vec<Reservation>>,
    gpus: watch::Sender<Arc<Vec<GpuFacts>>>,
    /// Containers that live in claims.
    pub members: Mutex<Vec<(ClaimId, ContainerId)>>,
    /// The daemon does not answer.
    pub gone: Mutex<bool>,
}

/// The UUID of the GPU with this number.
pub fn uuid(number: u8) -> GpuUuid {
    GpuUuid([number + 1; 16])
}

fn gpu(number: u8, mib: u64) -> GpuFacts {
    GpuFacts {
        number,
        uuid: uuid(number),
        index: NvmlIndex(u32::from(number)),
        product: Text::new("NVIDIA H200").expect("short"),
        pci: Text::new(&format!("0000:{number:02x}:00.0")).expect("short"),
        numa: Numa(Some(u32::from(number / 4))),
        island: Text::new(&format!("i{}", number / 4)).expect("short"),
        links: [0; GPUS_MAX],
        near: [255; GPUS_MAX],
        capability: [9, 0],
        driver: Text::new("580.65.06").expect("short"),
        simulated: true,
        health: Health::default(),
        total: Bytes(mib << 20),
        promised: Bytes(0),
        left: Bytes(mib << 20),
        share_promised: 0,
        share_left: 100,
        slices: 0,
        policy: Policy::ALL[0],
    }
}

impl Model {
    /// GPUs with this much memory, in MiB.
    pub fn new(mib: &[u64]) -> Arc<Model> {
        let gpus: Vec<GpuFacts> = (0..).zip(mib).map(|(number, mib)| gpu(number, *mib)).collect();
        let (gpus, _) = watch::channel(Arc::new(gpus));
        let (claims, members, gone) = Default::default();
        Arc::new(Model { claims, gpus, members, gone })
    }

    /// All claims, as `CLAIM on GPU,GPU with MIB and CORES`.
    pub fn told(&self) -> Vec<String> {
        let claims = self.claims.lock().expect("no panic");
        let one = |it: &Reservation| {
            let gpus: Vec<String> =
                it.gpus.as_slice().iter().map(|uuid| (uuid.0[0] - 1).to_string()).collect();
            let cores = it.share.map_or(0, |share| share.get());
            format!("{} on {} with {} and {cores}", it.claim, gpus.join(","), it.memory.0 >> 20)
        };
        claims.iter().map(one).collect()
    }

    /// Connects two GPUs by this many links.
    pub fn link(&self, one: usize, other: usize, links: u8) {
        self.gpus.send_modify(|gpus| {
            let mut all = gpus.to_vec();
            (all[one].links[other], all[other].links[one]) = (links, links);
            *gpus = Arc::new(all);
        });
    }

    /// Changes a GPU's health.
    pub fn health(&self, number: usize, state: HealthState) {
        self.gpus.send_modify(|gpus| {
            let mut all = gpus.to_vec();
            all[number].health.state = state;
            *gpus = Arc::new(all);
        });
    }

    fn recount(&self, claims: &[Reservation]) {
        self.gpus.send_modify(|gpus| {
            let mut all = gpus.to_vec();
            for gpu in &mut all {
                let ours = || claims.iter().filter(|it| it.gpus.as_slice().contains(&gpu.uuid));
                gpu.promised = Bytes(ours().map(|it| it.memory.0).sum());
                gpu.left = gpu.total.saturating_sub(gpu.promised);
                gpu.share_promised = ours().filter_map(|it| it.share).map(|it| it.get()).sum();
                gpu.share_left = 100_u32.saturating_sub(gpu.share_promised);
                gpu.slices = ours().count() as u32;
            }
            *gpus = Arc::new(all);
        });
    }

    fn answers(&self) -> Result<(), LedgerError> {
        match *self.gone.lock().expect("no panic") {
            true => Err(LedgerError::Unreachable("node.sock".to_owned())),
            false => Ok(()),
        }
    }
}

fn denied<T>(why: NodeDenial, text: &str) -> Result<T, LedgerError> {
    Err(LedgerError::Denied { why, text: text.to_owned() })
}

#[tonic::async_trait]
impl Ledger for Model {
    async fn rows(&self) -> Result<Rows, LedgerError> {
        self.answers()?;
        let gpus = self.gpus.borrow().to_vec();
        let claims = self.claims.lock().expect("no panic");
        let members = self.members.lock().expect("no panic");
        let of = |claim| members.iter().filter(move |it| it.0 == claim).map(|it| it.1);
        let row = |it: &Reservation| Claimed {
            claim: it.claim,
            owner: it.owner,
            gpus: it.gpus.as_slice().iter().map(|uuid| uuid.0[0] - 1).collect(),
            memory: it.memory,
            share: it.share,
            released: false,
            used: Bytes(0),
            members: of(it.claim).collect(),
        };
        Ok(Rows { gpus, claims: claims.iter().map(row).collect(), own: Vec::new() })
    }

    async fn reserve(&self, words: &Reservation) -> Result<String, LedgerError> {
        self.answers()?;
        let mut claims = self.claims.lock().expect("no panic");
        let device = format!("gpuslice.io/gpu={}", words.claim);
        if let Some(same) = claims.iter().find(|it| it.claim == words.claim) {
            return match same == words {
                true => Ok(device),
                false => denied(NodeDenial::ClaimDiffers, "the claim exists with other words"),
            };
        }
        for uuid in words.gpus.as_slice() {
            let gpus = self.gpus.borrow().clone();
            let Some(gpu) = gpus.iter().find(|gpu| gpu.uuid == *uuid) else {
                return denied(NodeDenial::NoSuchGpu, "no such GPU");
            };
            if gpu.health.state != HealthState::Healthy {
                return denied(NodeDenial::Unhealthy, "the GPU is not healthy");
            }
            if words.memory > gpu.left {
                return denied(NodeDenial::Memory, "the GPU has less memory left");
            }
            if words.share.is_some_and(|share| share.get() > gpu.share_left) {
                return denied(NodeDenial::Capacity, "the GPU has less compute left");
            }
        }
        claims.push(*words);
        self.recount(&claims);
        Ok(device)
    }

    async fn release(&self, claim: ClaimId) -> Result<(), LedgerError> {
        self.answers()?;
        let mut claims = self.claims.lock().expect("no panic");
        claims.retain(|it| it.claim != claim);
        self.recount(&claims);
        Ok(())
    }

    fn gpus(&self) -> watch::Receiver<Arc<Vec<GpuFacts>>> {
        self.gpus.subscribe()
    }
}
