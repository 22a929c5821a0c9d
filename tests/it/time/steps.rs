//! Programs that wait for each kernel before they launch the next one get GPU time by their weights, as those do
//! that keep the GPU's queue full.

use super::{Tenant, must, node, ratio_settles};
use nix::sys::signal::Signal;
use std::time::Duration;

/// The kernels are longer than the idle time, and the pauses much shorter: the holder of a turn keeps it.
#[test]
fn weights_hold_for_programs_that_synchronise() {
    let (mut node, machine) = node();
    node.end_daemon(Signal::SIGTERM);
    node.start_configured("idle_us = 20000\n");
    must(&node, &["set", "b", "--weight", "3"]);
    let step = ["--pause-us", "1000"];
    let light = Tenant::with(&node, &machine, "a", 30_000, &step);
    let heavy = Tenant::with(&node, &machine, "b", 30_000, &step);
    light.gets(&machine, Duration::from_millis(200));
    ratio_settles(&machine, &light, &heavy, 2.4..3.6);
}
