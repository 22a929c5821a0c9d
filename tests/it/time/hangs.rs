//! Processes that stop work on GPUs and hang: a descriptor of a tenant's that blocks whatever touches it, and a driver
//! that does not return from a control.
//!
//! Beside the container that hangs them two others share the GPU 1:3, and must go on so.

use super::preempt::{node_started, number, start, start_with_fault};
use super::strangers::{Named, drive, tell};
use super::{Hiccups, TURNS, Tenant, settles};
use crate::harness::fuse::Unanswering;
use crate::harness::node::{Node, faults};
use crate::harness::{PATIENCE, eventually, go_before_other_work, skip};
use gpuslice_sim_device::Machine;
use gpuslice_wire::policy::Class;
use gpuslice_wire::units::Bytes;
use nix::sys::signal::Signal;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

const CONFIG: &str = "preemption = \"probe\"\ndrain_max_ms = 200\n";
/// The same: how long a container that has not drained delays the others, whether its worker hangs or not.
const DRAIN_MAX: Duration = Duration::from_millis(200);
/// The part of `one` beside `three`.
const QUARTER: RangeInclusive<f64> = 0.18..=0.32;
/// Kernels of the container whose worker hangs, µs: beyond its turns, so that it is stopped.
pub const LONG_US: u64 = 250_000;

/// `one` and `three` share 1:3 beside `a`, which hangs its workers.
pub struct Scene {
    pub node: Node,
    pub machine: Machine,
    honest: [Tenant; 2],
}

impl Scene {
    pub fn new() -> Scene {
        Scene::of("", |_| ())
    }

    /// The same with more configuration, and a change to the command that starts the daemon.
    pub fn of(more: &str, change: impl FnOnce(&mut Command)) -> Scene {
        let containers = [
            ("a", 10, Class::Normal),
            ("late", 10, Class::Normal),
            ("one", 10, Class::Normal),
            ("three", 30, Class::Normal),
        ];
        let config = format!("{CONFIG}{more}");
        // Where it may: a busy machine lets the honest ones be late, and they would lose time to each other.
        go_before_other_work();
        let (node, machine) = node_started(&config, "on", &containers, change);
        let honest = ["one", "three"].map(|name| Tenant::start(&node, &machine, name, 300));
        let scene = Scene { node, machine, honest };
        scene.share(|| ());
        scene
    }

    pub fn faults(&self, text: &str) {
        faults(&self.machine, text);
    }

    /// The honest ones divide their time 1:3 while `meanwhile` is called again and again: in one of twenty
    /// stretches, because debts of the time before are paid in the first ones.
    pub fn share(&self, mut meanwhile: impl FnMut()) {
        let part = || self.part(&mut meanwhile, || true);
        settles("a quarter", part, |part| QUARTER.contains(part));
    }

    /// The part of `one` in the time of both, over a second of it or more, until it `is_over`.
    fn part(&self, mut meanwhile: impl FnMut(), is_over: impl Fn() -> bool) -> f64 {
        let busy = || [0, 1].map(|at: usize| self.honest[at].busy(&self.machine).as_secs_f64());
        let (start, before) = (Instant::now(), busy());
        loop {
            meanwhile();
            std::thread::sleep(Duration::from_millis(5));
            let now = busy();
            let had = [0, 1].map(|at: usize| now[at] - before[at]);
            if had[0] + had[1] > 1.0 && is_over() {
                return had[0] / (had[0] + had[1]);
            }
            assert!(start.elapsed() < 2 * PATIENCE, "after {had:?} s: {}", self.node.log());
        }
    }

    /// The honest ones go on while a worker hangs, until it `is_lost`: they divide all that time 1:3, and neither waits
    /// for longer than where no work is stopped.
    fn goes_on(&self, what: &str, meanwhile: impl FnMut(), is_lost: impl Fn() -> bool) {
        let hiccups = Hiccups::of(&[&self.node], &self.honest.each_ref());
        self.honest.iter().for_each(|it| it.watch(&self.machine));
        let part = self.part(meanwhile, is_lost);
        let gaps = self.honest.each_ref().map(|it| it.longest_gap(&self.machine));
        let allowed = DRAIN_MAX + TURNS + hiccups.allowance();
        assert!(gaps.iter().all(|gap| *gap <= allowed), "{what}: {gaps:?}, allowed {allowed:?}");
        assert!(QUARTER.contains(&part), "{what}: a part of {part}");
    }

    /// Whether `a` has lost so many workers.
    fn lost(&self, times: u32) -> bool {
        self.node.log().contains(&format!("container=a lost={times}"))
    }
}

/// A file of a FUSE server that does not answer, in the place of the driver's file: a process that examines it hangs in
/// the kernel, and cannot be killed. Another container's work is stopped and resumed meanwhile. After two such
/// processes the container's work is not stopped any more. The daemon can be restarted.
#[test]
fn a_descriptor_whose_server_never_answers() {
    let test = "a_descriptor_whose_server_never_answers";
    let mut scene = Scene::new();
    // Later than the scene, so that it goes first: nothing could end before it does.
    let server = match Unanswering::mount() {
        Ok(server) => server,
        Err(why) => return skip(test, &why),
    };
    let liar = scene.node.tenant("a");
    let attached = liar.attach(Bytes::ZERO);
    let fd = server.file().as_raw_fd().cast_unsigned();
    tell(&liar, 0, Named { fd, client: 1, group: 2, channel: 3 });
    scene.goes_on("a descriptor", || drive(&attached), || scene.lost(1));
    // Another container's work is stopped while that process hangs, and goes on.
    let late = Tenant::start(&scene.node, &scene.machine, "late", LONG_US);
    eventually("another container is stopped", || {
        drive(&attached);
        number(&scene.node, "late", "stops") > 0
    });
    late.gets(&scene.machine, Duration::from_micros(2 * LONG_US));
    drop(late);
    eventually("two lost workers", || {
        drive(&attached);
        scene.lost(2)
    });
    assert!(scene.node.log().contains("its work is not stopped on GPUs any more"));
    scene.share(|| drive(&attached));
    assert!(scene.lost(2) && !scene.lost(3), "{}", scene.node.log());
    assert_eq!(number(&scene.node, "a", "stops"), 0);
    drop((liar, attached));
    assert!(scene.node.end_daemon(Signal::SIGTERM).success());
    start(&mut scene.node, "on");
    scene.share(|| ());
    drop(server);
}

/// A control that does not return, at each step of a stop: what was stopped is resumed by another process. It hangs for
/// one process alone: on a slow machine those beside it are stopped now and then, too.
#[test]
fn a_control_that_does_not_return() {
    let scene = Scene::new();
    for step in ["stats", "stop", "resume", "slice"] {
        let low = Tenant::start(&scene.node, &scene.machine, "a", LONG_US);
        scene.faults(&format!("hang={step}@{}", low.child.id()));
        let lost = || scene.node.log().matches("container=a lost=1").count();
        let before = lost();
        scene.goes_on(step, || (), || lost() > before);
        scene.faults("none");
        scene.share(|| ());
        let off = || scene.machine.is_disabled(low.context).expect("alive");
        eventually(&format!("its work goes on: {step}"), || !off());
        drop(low);
        scene.node.wait_refunded("a");
        scene.node.dismiss("a");
        scene.node.must_admit("a", Bytes(1 << 30));
    }
}

/// A daemon that starts finds a journal whose line hangs what undoes it: it starts all the same.
#[test]
fn a_journal_that_cannot_be_undone() {
    let mut scene = Scene::new();
    let low = Tenant::start(&scene.node, &scene.machine, "a", LONG_US);
    let stopped = || scene.machine.is_disabled(low.context).expect("alive");
    eventually("a stop", stopped);
    scene.node.end_daemon(Signal::SIGKILL);
    let fault = format!("hang=resume@{}", low.child.id());
    start_with_fault(&mut scene.node, "on", &fault);
    eventually("a line is given up", || scene.node.log().contains("cannot be resumed"));
    for container in ["a", "one", "three"] {
        eventually("it came back", || number(&scene.node, container, "clients") == 1);
    }
    scene.honest[0].gets(&scene.machine, Duration::from_millis(50));
    drop(low);
}
