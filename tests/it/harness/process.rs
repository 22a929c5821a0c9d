//! Processes that tests start: what ends them, which user they are, what they see, and how they reach a slice.

use super::node::Node;
use super::target_dir;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Pid, Uid, gettid, setgroups, setresgid, setresuid};
use std::fs::read_to_string;
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Child, Command};

/// A child process that is killed when this is dropped, also by a failed test.
pub struct KillOnDrop(pub Child);

impl Deref for KillOnDrop {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for KillOnDrop {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lets a program use the node's simulated GPU as if that were the machine's, outside of any slice.
pub fn put_on_device<'a>(command: &'a mut Command, node: &Node) -> &'a mut Command {
    command
        .env("LD_LIBRARY_PATH", node.root().join("driver"))
        .env("GPUSLICE_SIM_DEVICE", node.root().join("device"))
}

/// Lets a program run in a container's slice, by preload injection.
pub fn put_in_slice<'a>(command: &'a mut Command, node: &Node, container: &str) -> &'a mut Command {
    put_on_device(command, node)
        .env("LD_PRELOAD", target_dir().join("libgpuslice.so"))
        .env("GPUSLICE_SOCKET", node.socket(container))
        .env("GPUSLICE_DRIVER_DIR", node.root().join("driver"))
}

/// Makes this process another user's, with no group but that user's own.
///
/// # Errors
/// Only root may.
pub fn become_user(user: u32) -> io::Result<()> {
    become_member(user, user, &[])
}

/// The same with a group, and with further ones.
///
/// # Errors
/// Only root may.
pub fn become_member(user: u32, group: u32, further: &[Gid]) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(group));
    setgroups(further)?;
    setresgid(gid, gid, gid)?;
    Ok(setresuid(uid, uid, uid)?)
}

/// Gives this thread mounts of its own, of which the machine sees no change.
///
/// # Errors
/// Only root may.
pub fn private_mounts() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    Ok(mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?)
}

/// The processes that this one's first thread has started; none if it is gone.
pub fn children(pid: Pid) -> Vec<Pid> {
    children_of_thread(&format!("/proc/{pid}/task/{pid}"))
}

/// The first of these whose program has this name.
pub fn child_named(pid: Pid, name: &str) -> Option<Pid> {
    let comm = |child: &Pid| read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
    children(pid).into_iter().find(|child| comm(child).trim_end() == name)
}

fn children_of_thread(directory: &str) -> Vec<Pid> {
    let text = read_to_string(format!("{directory}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|it| it.parse().ok().map(Pid::from_raw)).collect()
}

/// What each thread of this test's processes is doing, a line each: its name and state, the system call in which it is
/// with the arguments, where the kernel waits, and what its first descriptor argument is. A test that gave up tells
/// with it which of its programs hung, and where.
pub fn of_this_test() -> String {
    of_children(&format!("/proc/self/task/{}", gettid()))
}

/// The same of the processes that one thread has started, and of theirs.
fn of_children(directory: &str) -> String {
    let read = |path: String| read_to_string(path).unwrap_or_default();
    let mut lines = String::new();
    for pid in children_of_thread(directory) {
        lines += &format!(
            "process {pid}: {}\n",
            read(format!("/proc/{pid}/cmdline")).replace('\0', " ")
        );
        for thread in super::names(Path::new(&format!("/proc/{pid}/task"))) {
            let task = format!("/proc/{pid}/task/{thread}");
            let is = |file: &str| read(format!("{task}/{file}")).trim_end().to_owned();
            let call = is("syscall");
            let first = call.split(' ').nth(1).and_then(|word| word.strip_prefix("0x"));
            let first = first.and_then(|word| u32::from_str_radix(word, 16).ok());
            let open = first.and_then(|fd| std::fs::read_link(format!("{task}/fd/{fd}")).ok());
            let state = read(format!("{task}/status"));
            let state =
                state.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or_default();
            lines += &format!(
                "  {thread} {} {}: call {call}; {}; {open:?}\n",
                is("comm"),
                state.trim(),
                is("wchan")
            );
            lines += &of_children(&task);
        }
    }
    lines
}
