//! What the daemon may do, as the kernel says of each process (/proc/PID/status).

use crate::harness::eventually;
use crate::harness::node::Node;
use std::fs;

/// Bits of the capabilities that the daemon's processes keep.
const CHOWN: u64 = 1;
pub const DAC_OVERRIDE: u64 = 1 << 1;
pub const SYS_PTRACE: u64 = 1 << 19;
pub const SYS_ADMIN: u64 = 1 << 21;

/// A field of a process's status.
fn field(pid: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":"));
    line.unwrap_or_default().trim().to_owned()
}

fn capabilities(pid: u32, set: &str) -> u64 {
    u64::from_str_radix(&field(pid, set), 16).unwrap_or(u64::MAX)
}

/// The filters of a process that has so many more than this one.
fn filters(more: u32) -> String {
    let inherited: u32 = field(std::process::id(), "Seccomp_filters").parse().expect("a number");
    (inherited + more).to_string()
}

/// The same as [`assert_lowered`] of a child, which may be starting: its filter is the last step.
pub fn expect_lowered(what: &str, pid: u32, more: u32, capabilities: (u64, u64)) {
    eventually(&format!("{what} has a filter"), || field(pid, "Seccomp_filters") == filters(more));
    assert_lowered(what, pid, more, capabilities);
}

/// Asserts that the process has so many filters more than this one, and these capabilities, of those that this one has.
fn assert_lowered(what: &str, pid: u32, more: u32, (effective, permitted): (u64, u64)) {
    let ours = capabilities(std::process::id(), "CapPrm");
    assert_eq!(field(pid, "Seccomp_filters"), filters(more), "{what}");
    assert_eq!(
        (field(pid, "Seccomp"), field(pid, "NoNewPrivs")),
        ("2".into(), "1".into()),
        "{what}"
    );
    assert_eq!(capabilities(pid, "CapEff"), effective & ours, "{what}: in force");
    assert_eq!(capabilities(pid, "CapPrm"), permitted & ours, "{what}: permitted");
    assert_eq!((capabilities(pid, "CapInh"), capabilities(pid, "CapAmb")), (0, 0), "{what}");
}

/// It keeps no more as soon as it is ready. Its children are looked at where each of them is there:
/// `a_helper_that_hangs_stops_nothing`.
#[test]
fn the_daemons_threads_keep_what_they_need() {
    let node = Node::start();
    let daemon = node.pid().as_raw().unsigned_abs();
    let kept = (SYS_PTRACE | CHOWN, SYS_PTRACE | CHOWN | SYS_ADMIN | DAC_OVERRIDE);
    assert_lowered("the daemon", daemon, 1, kept);
    for thread in fs::read_dir(format!("/proc/{daemon}/task")).expect("threads").flatten() {
        let thread = thread.file_name().to_string_lossy().parse().expect("a number");
        assert_lowered("a thread", thread, 1, kept);
    }
}
