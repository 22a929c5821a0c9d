//! Processes in numbers: short lives, crowds, and a pid that comes again.

use super::{MIB, PAGE, Tenant, Truth, WHO, in_slice, node, program, setting};
use crate::harness::{eventually, is_root, skip};
use nix::sched::{CloneFlags, unshare};
use std::process::{Child, Stdio};

#[test]
fn short_lives_leave_nothing() {
    let node = node(512 * MIB);
    let lives = setting("LIVES", 200);
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
    node.wait_refunded(WHO);
    let truth = Truth::of(&node);
    eventually("nothing is used", || truth.used() == 0);
}

/// `count` processes initialise CUDA at once, and all of them get their context and a page.
fn crowd(count: u64) {
    let node = node(count * 80 * MIB);
    let mut crowd: Vec<Tenant> = (0..count)
        .map(|seed| Tenant::spawn(&node, seed, 1, 1))
        .collect();
    for tenant in &mut crowd {
        assert_eq!(tenant.answer().as_deref(), Some("ready"));
        assert_eq!(tenant.numbers(&format!("take {PAGE}"))[0], 0);
    }
    assert_eq!(
        node.slice(WHO).map(|(_, clients)| clients),
        Some(count as u32)
    );
    drop(crowd);
    node.wait_refunded(WHO);
}

#[test]
fn a_crowd_starts_at_once() {
    crowd(64);
}

/// The dead one's memory is not the new one's: a pid is no identity.
#[test]
fn a_pid_that_comes_again_is_somebody_else() {
    let test = "a_pid_that_comes_again_is_somebody_else";
    if !is_root() {
        return skip(test, "a pid namespace needs root");
    }
    let node = node(512 * MIB);
    // Each is the first process of a namespace of its own: all are pid 1 to themselves.
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
    let both = node.slice(WHO).expect("a slice");
    assert_eq!(both.1, 2);
    first.kill();
    eventually("one of the two is gone", || {
        node.slice(WHO).is_some_and(|(reserved, clients)| {
            clients == 1 && reserved.0 < both.0.0 && reserved.0 >= 8 * PAGE
        })
    });
    second.kill();
    node.wait_refunded(WHO);
}
