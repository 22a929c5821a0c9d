//! The ledger without the GPUs of other owners: what the front-ends of the agent see of it.
//!
//! A device plugin lists such a GPU as unhealthy, since the others keep their indices only while it is listed. A slice
//! of devices leaves it out, so that no taint ends its pods. Claims that were reserved before stay.

use super::owners::Owners;
use crate::ledger::{Ledger, LedgerError, Rows};
use gpuslice_wire::node::{GpuFacts, HealthState, Reservation};
use gpuslice_wire::owner::ClaimId;
use std::sync::Arc;
use tokio::sync::watch;

/// What becomes of a GPU with another owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreign {
    Unhealthy,
    Hidden,
}

/// The ledger, with other eyes.
pub struct Exclusive {
    ledger: Arc<dyn Ledger>,
    /// `None`: it is not known yet, and no GPU is offered.
    owners: watch::Receiver<Option<Arc<Owners>>>,
    foreign: Foreign,
    gpus: watch::Sender<Arc<Vec<GpuFacts>>>,
}

impl Exclusive {
    /// It follows the ledger while [`Exclusive::run`] runs.
    pub fn new(
        ledger: Arc<dyn Ledger>,
        owners: watch::Receiver<Option<Arc<Owners>>>,
        foreign: Foreign,
    ) -> Arc<Exclusive> {
        let (gpus, _) = watch::channel(Arc::default());
        Arc::new(Exclusive { ledger, owners, foreign, gpus })
    }

    /// Follows the ledger and the owners until the process ends.
    pub async fn run(&self) {
        let (mut facts, mut owners) = (self.ledger.gpus(), self.owners.clone());
        loop {
            let now = self.seen(&facts.borrow_and_update(), owners.borrow_and_update().as_deref());
            self.gpus.send_if_modified(|old| {
                let fresh = **old != now;
                *old = Arc::new(now);
                fresh
            });
            tokio::select! {
                _ = facts.changed() => {}
                _ = owners.changed() => {}
            }
        }
    }

    fn seen(&self, gpus: &[GpuFacts], owners: Option<&Owners>) -> Vec<GpuFacts> {
        let Some(owners) = owners else {
            return Vec::new();
        };
        let mut all = gpus.to_vec();
        match self.foreign {
            Foreign::Hidden => all.retain(|gpu| !owners.contains_key(&gpu.uuid)),
            Foreign::Unhealthy => {
                for gpu in all.iter_mut().filter(|gpu| owners.contains_key(&gpu.uuid)) {
                    gpu.health.state = HealthState::Lost;
                }
            }
        }
        all
    }
}

#[tonic::async_trait]
impl Ledger for Exclusive {
    async fn rows(&self) -> Result<Rows, LedgerError> {
        let mut rows = self.ledger.rows().await?;
        rows.gpus = self.seen(&rows.gpus, self.owners.borrow().as_deref());
        Ok(rows)
    }

    async fn reserve(&self, words: &Reservation) -> Result<String, LedgerError> {
        self.ledger.reserve(words).await
    }

    async fn release(&self, claim: ClaimId) -> Result<(), LedgerError> {
        self.ledger.release(claim).await
    }

    fn gpus(&self) -> watch::Receiver<Arc<Vec<GpuFacts>>> {
        self.gpus.subscribe()
    }
}
