//! Signals that end a service.

use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

/// How long Services may still route to a process that was told to end: its address leaves them after the signal, and
/// the nodes learn of that one after the other.
pub const ROUTED: Duration = Duration::from_secs(5);

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

/// Waits for a signal that ends the process, and then until no Service routes to it any more. A second signal ends the
/// wait.
pub async fn unrouted() {
    after(terminated(), terminated()).await;
}

async fn after(told: impl Future<Output = ()>, again: impl Future<Output = ()>) {
    told.await;
    tokio::select! {
        () = sleep(ROUTED) => {}
        () = again => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
    use tokio::time::{Instant, timeout};

    #[tokio::test(start_paused = true)]
    async fn a_process_serves_for_a_while_after_its_signal() {
        let began = Instant::now();
        after(sleep(ROUTED), pending()).await;
        assert_eq!(began.elapsed(), 2 * ROUTED);
        after(ready(()), sleep(ROUTED / 5)).await;
        assert_eq!(began.elapsed(), 2 * ROUTED + ROUTED / 5, "a second signal");
        assert!(timeout(20 * ROUTED, after(pending(), ready(()))).await.is_err(), "no first one");
    }
}
