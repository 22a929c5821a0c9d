//! A process that claims work and has none.
//!
//! It attaches to its container's socket as the shim does. For a while it says that it is runnable, and takes part in
//! every turn, and in open mode, without reporting that it has drained; then it is quiet for a while; again and again.
//! `src/wire/page.rs` explains the page's protocol, `shim/launch/claim.rs` what an honest process does.

use crate::Error;
use crate::client::{Attached, Client};
use gpuslice_wire::page::{MODE_OPEN, may_launch};
use std::io::Write;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Interval between two looks at the turn.
const LOOK: Duration = Duration::from_millis(1);

/// Claims for `claim_ms`, is quiet for `quiet_ms`, for ever.
///
/// # Errors
/// The daemon does not let it attach.
pub fn run(claim_ms: &str, quiet_ms: &str) -> Result<(), Error> {
    let [claim, quiet] = [claim_ms, quiet_ms].map(|ms| ms.parse().map(Duration::from_millis));
    let (claim, quiet) = (claim?, quiet?);
    let connection = Client::of_this_slice()?;
    let mut attached = connection.attach()?;
    loop {
        let begin = Instant::now();
        while begin.elapsed() < claim {
            claims_work(&mut attached)?;
            std::thread::sleep(LOOK);
        }
        let lane = &attached.client.lane[0];
        lane.runnable.store(0, SeqCst);
        lane.drained.store(lane.active.load(SeqCst), SeqCst);
        attached.bell.write_all(&1_u64.to_ne_bytes())?;
        std::thread::sleep(quiet);
    }
}

/// Says that it is runnable, and that its work of this turn has not drained.
///
/// # Errors
/// The daemon's bell is gone.
pub fn claims_work(attached: &mut Attached) -> Result<(), Error> {
    let (lane, shown) = (&attached.client.lane[0], &attached.container.lane[0]);
    lane.runnable.store(1, SeqCst);
    let turn = shown.turn.load(SeqCst);
    if may_launch(turn) || shown.mode.load(SeqCst) == MODE_OPEN {
        lane.drained.store(turn.wrapping_sub(1), SeqCst);
        lane.active.store(turn, SeqCst);
    }
    Ok(attached.bell.write_all(&1_u64.to_ne_bytes())?)
}
