//! Signals that end a service.

use tokio::signal::unix::{SignalKind, signal};

/// Waits for a signal that ends the process. In a container the kernel ignores one that the process does not await.
pub async fn terminated() {
    let Ok(mut term) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
