//! Containers get slices, or a reason.

use crate::harness::node::{Node, admit, denied, id};
use crate::harness::wire::AdminClient;
use crate::harness::{copy_program, is_root, skip};
use gpuslice_wire::admin::{Answer, Command, Denial, MemoryAsk};
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::units::{Bytes, GIB};
use nix::errno::Errno;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

#[test]
fn an_admitted_container_has_all_it_needs_mounted() {
    let node = Node::start();
    let Answer::Admitted { mounts } = node.admit("web-1", Bytes(GIB)) else {
        panic!("not admitted")
    };
    let (dir, cuda, nvml, device) = (mounts.dir, mounts.cuda, mounts.nvml, mounts.device);
    assert_eq!(Path::new(dir.as_str()), node.inside("web-1"));
    assert!(cuda.as_str().ends_with("/driver/libcuda.so.1"), "{cuda}");
    assert!(nvml.as_str().ends_with("/driver/libnvidia-ml.so.1"), "{nvml}");
    assert_eq!(Path::new(device.as_str()), node.root().join("device/node"));
    let mode = |path: &str| {
        let meta = std::fs::metadata(Path::new(dir.as_str()).join(path)).expect(path);
        meta.permissions().mode() & 0o7777
    };
    assert_eq!((mode(""), mode("tenant.sock"), mode("../record")), (0o711, 0o666, 0o600));
    assert_eq!(mode("driver/libcuda.so.1"), 0o444);
    // Nothing that the daemon reads again.
    let entries = std::fs::read_dir(Path::new(dir.as_str())).expect("a directory");
    let names: BTreeSet<_> = entries.map(|it| it.expect("an entry").file_name()).collect();
    assert_eq!(names, ["driver", "memory", "tenant.sock"].map(Into::into).into());
    let admin = std::fs::metadata(node.runtime_dir().join("admin.sock")).expect("a socket");
    assert_eq!(admin.permissions().mode() & 0o7777, 0o600);
    assert_eq!(node.dismiss("web-1"), Answer::Dismissed {});
    assert!(!Path::new(dir.as_str()).exists());
    assert_eq!(node.dismiss("web-1"), Answer::Dismissed {}, "twice is the same as once");
}

#[test]
fn a_container_twice_is_refused() {
    let node = Node::start();
    node.must_admit("a", Bytes(GIB));
    let (why, text) = denied(node.admit("a", Bytes(GIB)));
    assert_eq!(why, Denial::Exists);
    assert!(text.contains("container a has a slice already"), "{text}");
    assert!(node.socket("a").exists(), "the first one is untouched");
}

#[test]
fn impossible_slices_are_refused_with_a_reason() {
    let node = Node::start();
    for (gpus, memory, kind) in [
        ("0", 17 * GIB, Denial::Memory),
        ("0", u64::MAX, Denial::Memory),
        ("2", GIB, Denial::NoSuchGpu),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", GIB, Denial::NoSuchGpu),
        ("x", GIB, Denial::Invalid),
        ("0,0", GIB, Denial::Invalid),
    ] {
        let command = admit("a", gpus, MemoryAsk::Exactly(Bytes(memory)));
        let (why, text) = denied(node.admin().ask(&command));
        assert_eq!(why, kind, "{gpus} {memory}: {text}");
        assert!(!text.is_empty());
    }
    assert!(!node.container_dir("a").exists(), "nothing is left of a refused one");
    node.must_admit("a", Bytes(16 * GIB));
}

/// A cap of 0 is not even a message: the frame is refused, with words.
#[test]
fn a_cap_of_zero_is_refused() {
    let node = Node::start();
    let (why, text) = denied(node.admit("a", Bytes::ZERO));
    assert_eq!(why, Denial::Protocol);
    assert!(text.contains("invalid value"), "{text}");
}

#[test]
fn promises_do_not_exceed_the_gpu_unless_allowed() {
    let mut node = Node::start();
    node.must_admit("a", Bytes(10 * GIB));
    let (why, text) = denied(node.admit("b", Bytes(7 * GIB)));
    assert_eq!(why, Denial::Memory, "{text}");
    node.must_admit("b", Bytes(6 * GIB));
    node.end_daemon(nix::sys::signal::Signal::SIGTERM);
    node.start_configured("oversubscribe = true\ncontainers_max = 3\n");
    node.must_admit("c", Bytes(16 * GIB));
    let (why, text) = denied(node.admit("d", Bytes(GIB)));
    assert_eq!(why, Denial::Capacity);
    assert!(text.contains("3 slices exist"), "{text}");
}

#[test]
fn a_list_names_gpus_and_slices() {
    let node = Node::start();
    node.must_grant(&admit("a", "all", MemoryAsk::Ratio { part: 1, whole: 4 }));
    let rows = node.admin().list();
    let gpus = rows.iter().filter(|row| matches!(row, Snapshot::Gpu { .. })).count();
    let caps: Vec<Bytes> = rows
        .iter()
        .filter_map(|row| match row {
            Snapshot::Slice { container, cap, .. } if *container == id("a") => Some(*cap),
            _ => None,
        })
        .collect();
    assert_eq!((gpus, caps), (2, vec![Bytes(4 * GIB); 2]));
}

/// A container's root may own the libraries that all containers see. A program that opens one on which there is a lease
/// for writing waits for 45 s.
#[test]
fn no_lease_is_to_be_had_on_the_shared_libraries() {
    let mut node = Node::new();
    // Files of this test alone: other tests have those of the build open, and that refuses a lease, too.
    let (shim, driver) = (node.root().join("shim"), node.root().join("driver"));
    std::fs::create_dir(&shim).expect("made");
    for name in ["libgpuslice.so", "libgpuslice_mount.so", "libgpuslice_nvml.so"] {
        std::fs::write(shim.join(name), "").expect("written");
    }
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        let link = driver.join(name);
        let real = link.canonicalize().expect("built");
        let copy = driver.join(real.file_name().expect("a name"));
        copy_program(&real, &copy);
        std::fs::remove_file(&link).expect("removed");
        symlink(&copy, &link).expect("a link");
    }
    node.start_configured(&format!("shim_dir = {shim:?}\n"));
    let Answer::Admitted { mounts } = node.admit("web", Bytes(GIB)) else { panic!("not admitted") };
    for path in [mounts.cuda, mounts.nvml, mounts.preload, mounts.mount, mounts.nvml_shim] {
        let file = File::open(path.as_str()).expect("a file");
        // SAFETY: numbers, and a descriptor of ours.
        let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        assert_eq!(Errno::result(done), Err(Errno::EAGAIN), "{path}");
    }
}

/// A list that is longer than a socket holds, to a reader that takes its time.
#[test]
fn a_long_list_arrives_whole() {
    let node = Node::start();
    let admin = node.admin();
    for n in 0..250 {
        let command = admit(&format!("c{n}"), "all", MemoryAsk::Exactly(Bytes(1 << 20)));
        assert!(matches!(admin.ask(&command), Answer::Admitted { .. }), "{n}");
    }
    admin.0.send(8, &Command::List {}).expect("sent");
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(node.slice("c0").is_some(), "others are served while it is stuck");
    let (mut slices, mut times) = (0, 0);
    while let Some((8, row, _)) = admin.0.message::<Snapshot>() {
        match row {
            Snapshot::Slice { .. } => slices += 1,
            Snapshot::SliceTime { .. } => times += 1,
            Snapshot::End { .. } => break,
            _ => {}
        }
    }
    assert_eq!((slices, times), (500, 500));
}

#[test]
fn garbage_on_the_admin_socket_is_answered_and_closed() {
    let node = Node::start();
    let admin = node.admin();
    admin.0.send_raw(b"hello", &[]).expect("sent");
    let (_, answer, _) = admin.0.message().expect("an answer");
    assert_eq!(denied(answer).0, Denial::Protocol);
    admin.0.expect_end();
}

/// Only root and the daemon's own user may ask, whatever the socket file's permissions became.
#[test]
fn another_user_may_not_ask() {
    if !is_root() {
        return skip("another_user_may_not_ask", "only root can become somebody else");
    }
    let node = Node::start();
    let open_to_all = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("chmod");
    };
    open_to_all(node.root(), 0o755);
    let socket = node.runtime_dir().join("admin.sock");
    let refused = as_nobody(|| AdminClient::connect(&socket).err());
    assert_eq!(refused, Some(nix::errno::Errno::EACCES));
    open_to_all(&socket, 0o666);
    let told = as_nobody(|| {
        let admin = AdminClient::connect(&socket).expect("the file lets everybody in now");
        let (_, answer, _) = admin.0.message().expect("an answer");
        admin.0.expect_end();
        denied(answer)
    });
    assert_eq!(told.0, Denial::Protocol);
    assert!(told.1.contains("only root"), "{}", told.1);
}

/// Runs a function as the user `nobody`, on a thread of its own: the system call changes the thread,
/// only the C library's wrapper would change the process.
fn as_nobody<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    const NOBODY: libc::uid_t = 65534;
    let become_nobody = || {
        // SAFETY: integers only; the thread ends after this and nothing else runs on it.
        unsafe {
            libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY)
                | libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY)
        }
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            assert_eq!(become_nobody(), 0);
            what()
        });
        thread.join().expect("the thread's asserts hold")
    })
}

#[test]
fn a_full_disk_refuses_the_container_and_loses_nothing() {
    const NAME: &str = "a_full_disk_refuses_the_container_and_loses_nothing";
    if !is_root() {
        return skip(NAME, "only root can mount a small file system");
    }
    let mut node = Node::new();
    let small = node.root().join("small");
    std::fs::create_dir(&small).expect("a directory");
    let options = "size=64k,mode=0711";
    let tmpfs = nix::mount::mount(
        Some("none"),
        &small,
        Some("tmpfs"),
        nix::mount::MsFlags::empty(),
        Some(options),
    );
    if let Err(why) = tmpfs {
        return skip(NAME, &format!("mounting a tmpfs: {why}"));
    }
    let _unmount = Unmount(small.clone());
    node.set_runtime_dir(small.join("run"));
    node.start_daemon(&[]);
    node.must_admit("first", Bytes(GIB));
    let filler = small.join("filler");
    let mut file = std::fs::File::create(&filler).expect("created");
    while std::io::Write::write(&mut file, &[0; 4096]).is_ok() {}
    drop(file);
    let (why, text) = denied(node.admit("second", Bytes(GIB)));
    assert_eq!(why, Denial::Host);
    assert!(text.contains("No space left on device"), "{text}");
    assert!(!node.container_dir("second").exists());
    assert!(node.slice("first").is_some() && node.slice("second").is_none());
    node.tenant("first").attach(Bytes::ZERO);
    std::fs::remove_file(filler).expect("removed");
    node.must_admit("second", Bytes(GIB));
    node.end_daemon(nix::sys::signal::Signal::SIGKILL);
    node.start_daemon(&[]);
    assert!(node.slice("first").is_some() && node.slice("second").is_some());
    node.end_daemon(nix::sys::signal::Signal::SIGTERM);
}

struct Unmount(std::path::PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}
