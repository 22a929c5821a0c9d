//! The device plugin pair: GPU memory and compute as extended resources, decided together.

pub mod answer;
pub mod decide;
pub mod devices;
pub mod identity;
pub mod report;
pub mod server;
pub mod state;
pub mod topology;

use crate::api::objects::Pod;
use crate::api::store::Objects;
use anyhow::Result;
use devices::{Offer, Resource};
use server::Plugin;
use state::Pair;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tracing::warn;

/// Longest time between two searches for claims of pods that have ended.
const RELEASE: Duration = Duration::from_secs(5);
/// Ends of pods within this time cause one search.
const TOGETHER: Duration = Duration::from_millis(200);

/// Runs the pair until one of it fails.
///
/// # Errors
/// The node has more devices than a kubelet reads, or a socket cannot be made.
pub async fn run(pair: Arc<Pair>) -> Result<()> {
    server::first_facts(&mut pair.ledger.gpus()).await;
    pair.inventory().check_size()?;
    let plugin = |resource| Arc::new(Plugin { pair: pair.clone(), resource }).run();
    let cores = async {
        match pair.settings.offer {
            Offer::Both => plugin(Resource::Cores).await,
            Offer::Share | Offer::Memory | Offer::Whole => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = plugin(Resource::Memory) => ended,
        ended = cores => ended,
        () = release(&pair) => Ok(()),
        () = report::run(&pair) => Ok(()),
    }
}

/// Releases the claims of pods that have ended, until the process ends.
pub async fn release(pair: &Pair) {
    let (mut pods, mut living) = (pair.pods.clone(), BTreeSet::new());
    loop {
        // Without a watch there is no news, and the pods of its last copy stay.
        let _ = tokio::time::timeout(RELEASE, an_end(&mut pods, &mut living)).await;
        tokio::time::sleep(TOGETHER).await;
        if let Err(error) = pair.release_ended().await {
            warn!("claims of pods that have ended stay reserved for now: {error:#}");
        }
    }
}

/// Waits until one of the living pods has ended or is gone, and notes which live now, by uid.
async fn an_end(pods: &mut watch::Receiver<Objects<Pod>>, living: &mut BTreeSet<String>) {
    while pods.changed().await.is_ok() {
        let all = pods.borrow_and_update();
        let live = all.iter().flat_map(|all| all.values()).filter(|pod| !pod.ended());
        let now: BTreeSet<String> = live.map(|pod| pod.metadata.uid.clone()).collect();
        let ended = !living.is_subset(&now);
        *living = now;
        if ended {
            return;
        }
    }
    std::future::pending().await
}
