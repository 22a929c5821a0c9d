//! How long a suspension and a resume of nearly a gibibyte take, beside what the link between GPU and host needs for
//! the bytes.
//!
//! A program in a slice holds the memory and is idle. The time is from the command to the daemon's answer. The program
//! and the socket of the command are there before; what `gpuslice suspend` takes to start is not in it.

use crate::allocating::{Program, gather, order};
use crate::client::Client;
use crate::node::Node;
use crate::{Error, Pace, Row};
use gpuslice_sim_device::limits::LINK_BYTES_PER_US;
use gpuslice_wire::admin::Command;
use gpuslice_wire::ids::ContainerId;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Instant;

/// What the program allocates. With its context that is nearly the 1 GiB of its slice.
const TAKEN: u64 = 896 << 20;
/// The most that a move takes, in times of its bytes over the link.
const BOUND: f64 = 1.1;

/// Rows of a move to the host and of one back.
///
/// # Errors
/// A node does not work, or the driver refuses a move.
pub fn measure(parts: &Path, pace: Pace) -> Result<Vec<Row>, Error> {
    let node = Node::start(parts, 1)?;
    let (told, answers) = channel();
    let mut programs = [Program::start(&node, told)?];
    gather(&answers, "ready", 1)?;
    order(&mut programs, &format!("take {TAKEN}"), &answers, "took 0 ")?;
    let seen: serde_json::Value = serde_json::from_str(&node.gpuslice("ps --json")?)?;
    let slice = &seen["slices"][0];
    let container = slice["container"].as_str().and_then(|id| ContainerId::new(id).ok());
    let container = container.ok_or("no slice")?;
    let bytes = slice["memory_used"].as_u64().ok_or("no size")?;
    let link_us = bytes as f64 / LINK_BYTES_PER_US as f64;
    let admin = Client::connect(&node.runtime_dir().join("admin.sock"))?;
    let timed = |command: &Command| {
        let began = Instant::now();
        admin.command(command)?;
        Ok::<f64, Error>(began.elapsed().as_secs_f64() * 1e6 / link_us)
    };
    let (mut away, mut back) = (Vec::new(), Vec::new());
    let rounds = if pace.is_quick() { 50 } else { 200 };
    for _ in 0..rounds {
        away.push(timed(&Command::Suspend { container })?);
        back.push(timed(&Command::Resume { container })?);
    }
    let name = |what: &str| format!("{what} of {} MiB, of its bytes' time", bytes >> 20);
    Ok(vec![
        Row::of(&name("suspend"), "times", away, BOUND),
        Row::of(&name("resume"), "times", back, BOUND),
    ])
}
