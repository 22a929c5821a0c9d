//! SIGKILL before each system call by which the daemon changes a file while it serves a container, by strace.
//!
//! The first daemon's calls are counted. Then each of them ends a daemon, so that a record is cut at every place where
//! it can be. The next daemon has each answered change, and of an unanswered one all or nothing.

use crate::harness::node::{Node, admit, admit_first, id};
use crate::harness::wire::TenantClient;
use crate::harness::{eventually, skip};
use gpuslice_wire::admin::{Answer, Command as AdminCommand, MemoryAsk};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::tenant::{Reply, Request};
use gpuslice_wire::units::{Bytes, GIB, MIB};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What the daemon does to files: changes of directories, of owners and modes, and writes. strace passes over a name
/// with a question mark that this architecture lacks.
const CALLS: &str = "?mkdir,?mkdirat,?rename,?renameat,?renameat2,?unlink,?unlinkat,?rmdir,?symlink,?symlinkat,\
                     ?link,linkat,bind,?chmod,fchmod,fchmodat,?fchmodat2,?chown,?lchown,fchown,fchownat,\
                     openat,fsync,fdatasync,ftruncate,fallocate,write,writev,pwrite64";
const GRANT: Bytes = Bytes(600 * MIB);

/// What the daemon answered before its end.
#[derive(Debug, Default)]
struct Promised {
    admitted: bool,
    granted: bool,
    dismissed: bool,
}

impl Promised {
    /// A slice, memory in it, and its end; as far as the daemon lives.
    fn by(node: &Node) -> Promised {
        let mut promised = Promised::default();
        let _ = promised.drive(node);
        promised
    }

    fn drive(&mut self, node: &Node) -> Option<()> {
        let admin = node.try_admin().ok()?;
        let answer = admin.try_ask(&admit("a", "0", MemoryAsk::Exactly(Bytes(GIB))))?;
        assert!(matches!(answer, Answer::Admitted { .. }), "{answer:?}");
        self.admitted = true;
        let tenant = TenantClient::connect(&node.socket("a")).ok()?;
        tenant.try_attach()?;
        let ask = Request::Reserve { lane: Lane(0), need: GRANT, wish: GRANT };
        tenant.0.send(2, &ask).ok()?;
        let (_, reply, _) = tenant.0.message::<Reply>()?;
        assert_eq!(reply, Reply::Reserved { lane: Lane(0), bytes: GRANT });
        self.granted = true;
        let answer = admin.try_ask(&AdminCommand::Dismiss { container: id("a") })?;
        assert_eq!(answer, Answer::Dismissed {});
        self.dismissed = true;
        Some(())
    }

    /// The next daemon keeps what was answered.
    fn is_kept(&self, node: &Node, place: &str) {
        let slice = node.slice("a");
        assert!(!self.dismissed || slice.is_none(), "{place}: {self:?}, {slice:?}");
        // The dismissal was asked for once memory was granted, and may have happened.
        let is_sure = self.admitted && !self.granted;
        assert!(!is_sure || slice.is_some(), "{place}: {self:?}, a slice is lost");
        let Some((Bytes(reserved), _)) = slice else { return };
        let whole = reserved == 0 || reserved == GRANT.0;
        assert!(whole && (!self.granted || reserved > 0), "{place}: {self:?}, {reserved} bytes");
        assert_eq!(node.dismiss("a"), Answer::Dismissed {}, "{place}");
    }
}

/// Whether strace is there; if not, that is printed as the reason why a test is skipped.
fn has_strace(test: &str) -> bool {
    let is_there = Command::new("strace").arg("-V").output().is_ok();
    if !is_there {
        skip(test, "strace is not installed");
    }
    is_there
}

/// Attaches strace to the thread that serves.
fn traced(node: &Node, words: &[&str], to: &Path) -> Child {
    let mut command = Command::new("strace");
    command.arg("-o").arg(to).args(words).args(["-p", &node.pid().to_string()]);
    let log = to.with_extension("log");
    let said = fs::File::create(&log).expect("a file");
    let child = command.stdin(Stdio::null()).stderr(said).spawn().expect("strace starts");
    eventually("strace", || fs::read_to_string(&log).is_ok_and(|it| it.contains("attached")));
    child
}

/// Each call of a daemon that serves `serve` by which it changes a file, as its name and its number among the calls of
/// this name.
fn changes(node: &mut Node, root: &Path, serve: impl FnOnce(&Node)) -> Vec<(String, usize)> {
    let trace = root.join("trace");
    let mut strace = traced(node, &["-e", &format!("trace={CALLS}")], &trace);
    serve(node);
    node.end_daemon(Signal::SIGKILL);
    strace.wait().expect("ours");
    let (mut changes, mut counts) = (Vec::new(), BTreeMap::<String, usize>::new());
    for line in fs::read_to_string(trace).expect("a trace").lines() {
        let Some((call, rest)) = line.split_once('(') else { continue };
        let count = counts.entry(call.to_owned()).or_default();
        *count += 1;
        if call != "openat" || rest.contains("O_CREAT") {
            changes.push((call.to_owned(), *count));
        }
    }
    changes
}

/// A daemon that is to end before a call, and the strace that ends it.
fn doomed(node: &Node, root: &Path, (call, when): &(String, usize)) -> Child {
    let inject = format!("inject={call}:signal=SIGKILL:when={when}");
    traced(node, &["-e", &format!("trace={call}"), "-e", &inject], &root.join("killed"))
}

/// The first process of a container, and the answer to the request for its slice.
fn with_first_process(node: &Node) -> (Child, Option<Answer>) {
    let first = Command::new("sleep").arg("600").spawn().expect("it starts");
    let ask = admit_first("a", "0", MemoryAsk::Exactly(Bytes(GIB)), first.id());
    let answer = node.try_admin().ok().and_then(|admin| admin.try_ask(&ask));
    (first, answer)
}

fn ends(mut first: Child) {
    first.kill().and_then(|()| first.wait()).expect("ours");
}

/// The container's first process ends while no daemon is there: wherever the one before was killed, the next one has no
/// slice of it.
#[test]
fn a_kill_before_each_change_of_a_file_leaves_no_slice_behind() {
    if !has_strace("a_kill_before_each_change_of_a_file_leaves_no_slice_behind") {
        return;
    }
    let root = tempfile::tempdir().expect("a directory");
    let mut node = Node::start();
    let changes = changes(&mut node, root.path(), |node| ends(with_first_process(node).0));
    let mut answered = 0;
    for change in &changes {
        node.start_daemon(&[]);
        assert_eq!(node.slice("a"), None, "before {change:?}");
        let mut strace = doomed(&node, root.path(), change);
        let (first, answer) = with_first_process(&node);
        answered += usize::from(answer.is_some());
        node.end_daemon(Signal::SIGKILL);
        strace.wait().expect("ours");
        ends(first);
    }
    node.start_daemon(&[]);
    assert_eq!(node.slice("a"), None);
    assert!(answered * 2 < changes.len(), "{answered} answers, with {changes:?}");
}

#[test]
fn a_kill_before_each_change_of_a_file_loses_nothing() {
    if !has_strace("a_kill_before_each_change_of_a_file_loses_nothing") {
        return;
    }
    let root = tempfile::tempdir().expect("a directory");
    let mut node = Node::start();
    let all = |node: &Node| assert!(Promised::by(node).dismissed, "nothing ends it");
    let changes = changes(&mut node, root.path(), all);
    for call in ["openat", "write", "fsync", "pwrite64", "bind"] {
        assert!(changes.iter().any(|(it, _)| it == call), "{call}: {changes:?}");
    }
    node.start_daemon(&[]);
    let mut killed = 0;
    for change in &changes {
        let mut strace = doomed(&node, root.path(), change);
        let promised = Promised::by(&node);
        killed += usize::from(!promised.dismissed);
        node.end_daemon(Signal::SIGKILL);
        strace.wait().expect("ours");
        node.start_daemon(&[]);
        promised.is_kept(&node, &format!("before {change:?}"));
    }
    eprintln!("{killed} kills before the last answer, of {changes:?}");
    // The end of a slice is answered before all of its files are gone.
    assert!(killed * 2 > changes.len(), "only {killed} kills of {changes:?}");
}
