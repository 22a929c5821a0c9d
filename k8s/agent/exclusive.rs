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

impl Foreign {
    /// The GPUs that the front-ends see.
    fn seen(self, gpus: &[GpuFacts], owners: Option<&Owners>) -> Vec<GpuFacts> {
        let Some(owners) = owners else {
            return Vec::new();
        };
        let mut all = gpus.to_vec();
        match self {
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
            let owners_now = owners.borrow_and_update().clone();
            let now = self.foreign.seen(&facts.borrow_and_update(), owners_now.as_deref());
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
}

#[tonic::async_trait]
impl Ledger for Exclusive {
    async fn rows(&self) -> Result<Rows, LedgerError> {
        let mut rows = self.ledger.rows().await?;
        rows.gpus = self.foreign.seen(&rows.gpus, self.owners.borrow().as_deref());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::owners::Owner;
    use crate::testing::{gpu, uuid};
    use gpuslice_wire::units::Bytes;

    #[test]
    fn a_gpu_with_another_owner_is_hidden_or_unhealthy() {
        let gpus: Vec<_> = (0..2).map(|number| gpu(number, Bytes(1 << 30))).collect();
        let others = Owners::from([(uuid(0), Owner::DevicePlugin)]);
        assert_eq!(Foreign::Hidden.seen(&gpus, Some(&others)), gpus[1..]);
        let mut unhealthy = gpus.clone();
        unhealthy[0].health.state = HealthState::Lost;
        assert_eq!(Foreign::Unhealthy.seen(&gpus, Some(&others)), unhealthy);
        for foreign in [Foreign::Hidden, Foreign::Unhealthy] {
            assert_eq!(foreign.seen(&gpus, Some(&Owners::new())), gpus);
            assert_eq!(foreign.seen(&gpus, None), [], "nothing is known of owners yet");
        }
    }
}
