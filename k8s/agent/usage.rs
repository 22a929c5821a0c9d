//! The annotation by which inspect knows real use: written when it changes, and not more often than [`EVERY`].

use crate::api::client::Client;
use crate::inspect::usage;
use crate::ledger::Ledger;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tracing::debug;

/// Time between two looks at the ledger.
const EVERY: Duration = Duration::from_secs(30);

/// Writes until the process ends.
pub async fn run(api: Client, ledger: Arc<dyn Ledger>, node: String) {
    let mut written = None;
    loop {
        if let Ok(rows) = ledger.rows().await {
            let text = usage::text(&usage::of_rows(&rows));
            if written.as_ref() != Some(&text) {
                let fields = json!({ "metadata": { "annotations": { usage::ANNOTATION: text } } });
                // The same right as for the number of GPUs: a node's status, with which annotations go.
                match api.merge(&format!("/api/v1/nodes/{node}/status"), &fields).await {
                    Ok(()) => written = Some(text),
                    Err(why) => debug!("the node's use is not told: {why:#}"),
                }
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}
