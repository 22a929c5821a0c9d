//! Short-lived processes, 64 processes that start at once, and a reused pid.

use super::{CONTAINER, DeviceView, MIB, PAGE, Tenant, in_slice, node, program, setting};
use crate::harness::{eventually, is_root, skip};
use nix::sched::{CloneFlags, unshare};
use std::process::{Child, Stdio};

#[test]
fn short_lives_leave_nothing() {
    let node = node(512 * MIB);
    let lives = setting("LIVES", 60);
    let once = || {
        let mut command = in_slice(&node, program("churn"));
        command.args(["1", "1", &PAGE.to_string(), "1"]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().expect("churn starts")
    };
    let mut living: Vec<Child> = Vec::new();
    for _ in 0..lives {
        living.push(once());
        if living.len() == 4 {
            let status = living.remove(0).wait().expect("ours");
            assert!(status.success(), "{status}");
        }
    }
    for mut child in living {
        assert!(child.wait().expect("ours").success());
    }
    node.wait_refunded(CONTAINER);
    let device = DeviceView::of(&node);
    eventually("nothing is used", || device.used() == 0);
}

/// `count` processes initialise CUDA at once, and all of them get their context and a page.
fn start_at_once(count: u64) {
    let node = node(count * 80 * MIB);
    let mut tenants: Vec<Tenant> =
        (0..count).map(|seed| Tenant::spawn(&node, seed, 1, 1)).collect();
    for tenant in &mut tenants {
        assert_eq!(tenant.answer().as_deref(), Some("ready"));
        assert_eq!(tenant.numbers(&format!("take {PAGE}"))[0], 0);
    }
    assert_eq!(node.slice(CONTAINER).map(|(_, clients)| clients), Some(count as u32));
    drop(tenants);
    node.wait_refunded(CONTAINER);
}

#[test]
fn sixty_four_processes_start_at_once() {
    start_at_once(64);
}

/// A new process does not take over a dead one's memory with its pid: a pid is no identity.
#[test]
fn a_reused_pid_is_another_process() {
    let test = "a_reused_pid_is_another_process";
    if !is_root() {
        return skip(test, "a pid namespace needs root");
    }
    let node = node(512 * MIB);
    // Each is the first process of its own pid namespace, where its pid is 1.
    let start = || {
        let mut command = in_slice(&node, program("churn"));
        command.args(["1", "1", &PAGE.to_string(), "1"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    };
    let in_namespace = || {
        std::thread::spawn({
            let mut command = start();
            move || {
                // The namespace is for children of this thread alone.
                unshare(CloneFlags::CLONE_NEWPID).expect("root may");
                Tenant::of(command.spawn().expect("churn starts"))
            }
        })
        .join()
        .expect("a tenant")
    };
    let (mut first, mut second) = (in_namespace(), in_namespace());
    for tenant in [&mut first, &mut second] {
        assert_eq!(tenant.answer().as_deref(), Some("ready"));
        assert_eq!(tenant.numbers(&format!("take {}", 8 * PAGE))[0], 0);
    }
    let both = node.slice(CONTAINER).expect("a slice");
    assert_eq!(both.1, 2);
    first.kill();
    eventually("one of the two is gone", || {
        node.slice(CONTAINER).is_some_and(|(reserved, clients)| {
            clients == 1 && reserved.0 < both.0.0 && reserved.0 >= 8 * PAGE
        })
    });
    second.kill();
    node.wait_refunded(CONTAINER);
}
