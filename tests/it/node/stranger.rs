//! A program that uses the driver without the shim: it takes all memory it can get and keeps it.

use super::group::Group;
use crate::harness::agent::Promised;
use crate::harness::node::Node;
use crate::harness::process::{KillOnDrop, put_on_device};
use crate::harness::wire::TenantClient;
use crate::harness::{PATIENCE, target_dir};
use gpuslice_wire::units::Bytes;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;

pub struct Stranger {
    _child: KillOnDrop,
    _lines: BufReader<ChildStdout>,
    /// Bytes it got, and the GPU's total as the driver reported it.
    pub got: u64,
    pub total: u64,
}

impl Stranger {
    /// Starts it in this group, on GPU 0 of the node; it is killed when dropped.
    pub fn start(node: &Node, group: &Group) -> Stranger {
        Stranger::start_with(node, group, &[])
    }

    /// The same with more arguments for its program.
    pub fn start_with(node: &Node, group: &Group, words: &[&str]) -> Stranger {
        let mut command = Stranger::command(node, words);
        group.holds(&mut command);
        Stranger::of(command.spawn().expect("the tenant starts"))
    }

    /// Starts one that takes `mib` MiB and is attached to a container as if it had the shim. `does` runs
    /// before it takes memory.
    pub fn attached(
        node: &Node,
        container: &str,
        mib: u64,
        does: impl FnOnce(TenantClient),
    ) -> Stranger {
        Stranger::attached_often(node, container, mib, |[tenant]| does(tenant))
    }

    /// The same with several connections, like a process whose CUDA library and NVML each have one.
    pub fn attached_often<const TIMES: usize>(
        node: &Node,
        container: &str,
        mib: u64,
        does: impl FnOnce([TenantClient; TIMES]),
    ) -> Stranger {
        Stranger::connected_often(node, container, mib, |all: [TenantClient; TIMES]| {
            all.iter().for_each(|tenant| drop(tenant.attach(Bytes::ZERO)));
            does(all);
        })
    }

    /// Starts one that is connected to a container and has not attached yet.
    pub fn connected(
        node: &Node,
        container: &str,
        mib: u64,
        does: impl FnOnce(TenantClient),
    ) -> Stranger {
        Stranger::connected_often(node, container, mib, |[tenant]| does(tenant))
    }

    fn connected_often<const TIMES: usize>(
        node: &Node,
        container: &str,
        mib: u64,
        does: impl FnOnce([TenantClient; TIMES]),
    ) -> Stranger {
        let mut command = Stranger::command(node, &["--most-mib", &mib.to_string()]);
        let promised = [(); TIMES].map(|()| Promised::by(&mut command, &node.socket(container)));
        let child = command.spawn().expect("the tenant starts");
        does(promised.map(Promised::tenant));
        Stranger::of(child)
    }

    fn command(node: &Node, words: &[&str]) -> Command {
        let mut command = Command::new(target_dir().join("tenant"));
        command
            .args(["--step-mib", "32", "--kernel-us", "20000"])
            .args(["--seconds", "600", "--with-reader"])
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        put_on_device(&mut command, node);
        command
    }

    fn of(child: Child) -> Stranger {
        let mut child = KillOnDrop(child);
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            lines.read_line(&mut line).expect("a line");
            let _ = sender.send((line, lines));
        });
        // One that the daemon has frozen before says nothing.
        let (line, lines) = receiver.recv_timeout(PATIENCE).expect("it tells what it got");
        let memory: Value = serde_json::from_str(&line).expect("a memory event");
        let number = |name: &str| memory[name].as_u64().expect("a number");
        Stranger { got: number("got"), total: number("total"), _child: child, _lines: lines }
    }
}
