//! Compares a hook's system calls, as `strace` prints them, with its plan.
//!
//! Descriptors are printed with the path of their open file (`5</bundle/rootfs/etc>`), which the
//! kernel derives from the file itself, whatever links led to it. The check is strict: an unknown
//! call is a finding.

use std::path::{Path, PathBuf};

/// Calls that touch no file, or only the file of a descriptor, which was checked when it was opened.
const HARMLESS: &[&str] = &[
    "access",
    "alarm",
    "arch_prctl",
    "brk",
    "capget",
    "capset",
    "close",
    "close_range",
    "execve",
    "exit_group",
    "exit",
    "fcntl",
    "fstat",
    "futex",
    "getdents64",
    "geteuid",
    "getpid",
    "getrandom",
    "getsockopt",
    "gettid",
    "lseek",
    "madvise",
    "mmap",
    "mount_setattr",
    "mprotect",
    "mremap",
    "munmap",
    "pidfd_open",
    "poll",
    "prctl",
    "read",
    "readv",
    "recvfrom",
    "rt_sigaction",
    "rt_sigprocmask",
    "sched_getaffinity",
    "sendto",
    "set_tid_address",
    "setfsgid",
    "setfsuid",
    "setitimer",
    "setsockopt",
    "sigaltstack",
    "socket",
    "umask",
    "write",
    "writev",
];

/// What else the hook may do; paths are the host's.
pub struct Plan {
    /// The directory that the container sees, where the hook writes its preload list.
    pub tenant: PathBuf,
    /// Its note of the container, beside that.
    pub note: PathBuf,
    /// The admin socket.
    pub socket: PathBuf,
    /// The container's root.
    pub rootfs: PathBuf,
    /// Paths of the host that the hook reads or mounts into the container.
    pub reads: Vec<PathBuf>,
}

/// A line of the trace.
struct Call<'a> {
    name: &'a str,
    arguments: &'a str,
    /// The return value, with the path if it is a descriptor.
    result: &'a str,
}

impl<'a> Call<'a> {
    /// `None` for lines that are not calls: signals, the end.
    fn parse(line: &'a str) -> Option<Call<'a>> {
        // A pid comes first when several processes are traced.
        let line = line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
        let (name, rest) = line.split_once('(')?;
        let (arguments, result) = rest.rsplit_once(" = ")?;
        let arguments = arguments.trim_end().strip_suffix(')')?;
        let named =
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        named.then_some(Call { name, arguments, result })
    }

    fn failed(&self) -> bool {
        self.result.starts_with('-')
    }

    /// The path of the `nth` descriptor among the arguments.
    fn held(&self, nth: usize) -> Option<&'a str> {
        let mut parts = self.arguments.match_indices('<');
        let from = parts.nth(nth)?.0 + 1;
        let len = self.arguments[from..].find('>')?;
        Some(&self.arguments[from..from + len])
    }

    /// The path of the returned descriptor.
    fn returned(&self) -> Option<&'a str> {
        let (_, path) = self.result.split_once('<')?;
        path.rsplit_once('>').map(|(path, _)| path)
    }

    /// The `nth` quoted argument.
    fn quoted(&self, nth: usize) -> Option<&'a str> {
        self.arguments.split('"').nth(nth * 2 + 1)
    }
}

/// The hook's protections: before it opens anything it closes its caller's descriptors and makes itself not
/// dumpable; before it enters a container it drops its capabilities.
const FIRST: [(&str, &str); 3] = [
    ("close_range(3, ", "config.json"),
    ("PR_SET_DUMPABLE, SUID_DUMP_DISABLE", "config.json"),
    ("capset(", "setns("),
];

/// The protections that are missing or too late.
pub fn unsettled(trace: &str) -> Vec<String> {
    let late = |(first, then): &(&str, &str)| {
        let then = trace.find(then)?;
        (!trace[..then].contains(first))
            .then(|| format!("no {first} before {}", &trace[then..then + 6]))
    };
    FIRST.iter().filter_map(late).collect()
}

/// Every call that is not in the plan.
pub fn findings(trace: &str, plan: &Plan) -> Vec<String> {
    let calls = trace.lines().filter_map(|line| Some((line, Call::parse(line)?)));
    calls
        .filter(|(_, call)| !call.failed() && !is_planned(call, plan))
        .map(|(line, _)| line.to_owned())
        .collect()
}

fn is_planned(call: &Call, plan: &Plan) -> bool {
    let writes = ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"];
    let writes = writes.iter().any(|flag| call.arguments.contains(flag));
    match call.name {
        name if HARMLESS.contains(&name) => name != "execve" || is_the_hook(call),
        "open" | "openat" | "openat2" => match call.returned() {
            Some(path) if writes => may_write(Path::new(path), plan),
            Some(path) => may_read(Path::new(path), plan),
            None => false,
        },
        "mkdirat" => {
            let made = call.held(0).zip(call.quoted(0));
            made.is_some_and(|(dir, name)| may_write(&Path::new(dir).join(name), plan))
        }
        // Looks, by path or at an open file.
        "statx" | "newfstatat" | "readlink" | "stat" => {
            let path = call.quoted(0).unwrap_or_default();
            path.is_empty() || may_read(Path::new(path), plan)
        }
        "connect" => call.arguments.contains(&format!("\"{}\"", plan.socket.display())),
        // The only way into the container, and the only thing that is ever put anywhere.
        "setns" => call.arguments.contains("CLONE_NEWNS"),
        "open_tree" => match call.quoted(0) {
            Some("") => true,
            Some(path) => plan.reads.iter().any(|read| read == Path::new(path)),
            None => false,
        },
        "move_mount" => call.held(1).is_some_and(|to| Path::new(to).starts_with(&plan.rootfs)),
        _ => false,
    }
}

/// The one program: the hook itself. strace's own line for it names no descriptor.
fn is_the_hook(call: &Call) -> bool {
    call.quoted(0).is_some_and(|path| path.ends_with("/gpuslice-hook"))
}

fn may_write(path: &Path, plan: &Plan) -> bool {
    path == plan.note
        || path.starts_with(&plan.tenant)
        || path.starts_with(&plan.rootfs) && path != plan.rootfs
}

fn may_read(path: &Path, plan: &Plan) -> bool {
    let known = ["/", "/run", "/dev", "/dev/null"].map(Path::new);
    let own = |path: &Path| {
        let mut parts = path.iter().skip(1);
        // Its own process, by number, and the namespaces of the container's.
        parts.next().is_some_and(|part| part == "proc") && parts.next().is_some()
    };
    known.contains(&path)
        || may_write(path, plan)
        || path == plan.rootfs
        || plan.reads.iter().any(|read| read == path)
        || own(path)
        || path.to_str().is_some_and(|path| path.starts_with("mnt:["))
}

#[test]
fn a_step_aside_is_found() {
    let plan = Plan {
        tenant: "/r/c/x/inside".into(),
        note: "/r/c/x/container".into(),
        socket: "/r/admin.sock".into(),
        rootfs: "/b/rootfs".into(),
        reads: vec!["/b/config.json".into()],
    };
    let good = r#"
execve("/x/gpuslice-hook", ["gpuslice-hook"], 0x7ffe /* 0 vars */) = 0
openat(AT_FDCWD</b>, "/b/config.json", O_RDONLY|O_CLOEXEC) = 3</b/config.json>
openat2(4</b/rootfs>, "etc", {flags=O_RDONLY|O_PATH, resolve=RESOLVE_IN_ROOT}, 24) = 5</b/rootfs/etc>
openat2(5</b/rootfs/etc>, "x", {flags=O_WRONLY|O_CREAT|O_EXCL, mode=0644}, 24) = 6</b/rootfs/etc/x>
mkdirat(5</b/rootfs/run>, "gpuslice", 0755) = 0
move_mount(7</>, "", 6</b/rootfs/etc/x>, "", 0x44) = 0
openat2(4</b/rootfs>, "bad", {flags=O_WRONLY|O_CREAT, resolve=0}, 24) = -1 ELOOP (Too many)
+++ exited with 0 +++
"#;
    assert_eq!(findings(good, &plan), [""; 0]);
    for bad in [
        r#"openat2(5</b/rootfs>, "x", {flags=O_WRONLY|O_CREAT}, 24) = 6</host/x>"#,
        r#"openat(AT_FDCWD</b>, "/b/rootfs/etc/x", O_RDONLY) = 6</etc/x>"#,
        r#"openat(AT_FDCWD</b>, "/b/rootfsx", O_RDONLY) = 6</b/rootfsx>"#,
        r#"mkdirat(5</host/run>, "gpuslice", 0755) = 0"#,
        r#"move_mount(7</>, "", 6</host/etc>, "", 0x44) = 0"#,
        r#"move_mount(7</>, "", 6</b/rootfs-other>, "", 0x44) = 0"#,
        r#"open_tree(AT_FDCWD</b>, "/b/rootfs/etc", OPEN_TREE_CLONE) = 6</>"#,
        r#"12 execve("/b/rootfs/sbin/ldconfig", ["ldconfig"], 0x7ffe) = 0"#,
        r#"unlink("/b/rootfs/etc/x") = 0"#,
        r#"connect(3<socket:[1]>, {sa_family=AF_UNIX, sun_path="/b/rootfs/s"}, 110) = 0"#,
        r#"setns(5, CLONE_NEWPID) = 0"#,
        r#"clone(child_stack=NULL, flags=SIGCHLD) = 77"#,
    ] {
        assert_eq!(findings(bad, &plan).len(), 1, "{bad}");
    }
    assert_eq!(unsettled("openat(3, config.json)\nsetns(5)").len(), 3);
}
