//! Kernels longer than `drain_max`, always one of them queued behind another: the container drains, and pays for them.
//!
//! The GPU time is the device's own account, and the ratio of two of its times is judged.

use super::{Tenant, must, node};
use std::time::{Duration, Instant};

/// With a limit of 50, kernels of 6 s get half of the GPU, although the next one is held at the gate all the time.
/// A kernel that runs looks stuck after 5 s, and the launch behind it goes without a turn; the one after that waits.
#[test]
fn a_limit_bounds_a_queue_of_long_kernels() {
    let (node, machine) = node();
    must(&node, &["set", "a", "--share-limit", "50"]);
    let tenant = Tenant::with(&node, &machine, "a", 6_000_000, &["--batch", "1"]);
    // Two pauses begin in the time in which ten kernels would run.
    let (start, before) = (Instant::now(), tenant.busy(&machine));
    std::thread::sleep(Duration::from_secs(60));
    let part = (tenant.busy(&machine) - before).as_secs_f64() / start.elapsed().as_secs_f64();
    assert!((0.3..0.75).contains(&part), "{part} of the GPU with a limit of 0.5");
}
