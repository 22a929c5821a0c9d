//! TOCTOU attacks by an image: a thread exchanges directories with links to the host at full speed, and
//! no file or mount of the hook may ever land outside the root.
//!
//! The root is a bind mount, as runtimes create it. The attacker works in the directory below it, from
//! another mount namespace, where the hook's mounts do not block renames. So before every open, `mkdir`
//! and mount there is a moment at which its name leads elsewhere. Each round has its own namespace;
//! `SWAP_ROUNDS` sets their number.

use crate::apply::{Sources, mount_and_verify};
use crate::place::{Host, Root};
use crate::plan::Plan;
use gpuslice_wire::admin::Mounts;
use gpuslice_wire::text::HostPath;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use tempfile::TempDir;

/// Targets of the attacker's links: host directories that look like the container's.
const PLACES: [(&str, &str); 4] = [
    ("etc", "host/etc"),
    ("run", "host/run"),
    ("usr/lib/x86_64-linux-gnu", "host/lib"),
    ("etc/ld.so.preload", "host/etc/list"),
];

/// Directories of an image, the host beside it and the mount sources, in this thread's mount namespace.
struct Fixture {
    dir: TempDir,
    home: File,
}

impl Fixture {
    /// `None`, with a message, if this thread may not create a namespace.
    fn new(test: &str) -> Option<Fixture> {
        if !nix::unistd::geteuid().is_root() {
            let line = format!("SKIP {test}: mounts need root\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        unshare(CloneFlags::CLONE_NEWNS).expect("a namespace");
        let (none, private) = (None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
        mount(none, "/", none, private, none).expect("private");
        let fixture = Fixture { dir, home: File::open("/proc/thread-self/ns/mnt").expect("ours") };
        for sub in [
            "image/etc",
            "image/run",
            "image/usr/lib/x86_64-linux-gnu",
            "image/dev",
            "image/out/in",
            "root",
            "host/etc",
            "host/run",
            "host/lib",
            "host/out",
            "slice/driver",
            "device",
        ] {
            fs::create_dir_all(fixture.at(sub)).expect("a directory");
        }
        for file in [
            "image/etc/ld.so.preload",
            "image/usr/lib/x86_64-linux-gnu/libcuda.so.1",
            "host/etc/list",
            "host/lib/libcuda.so.1",
            "slice/driver/libcuda.so.1",
            "slice/driver/libnvidia-ml.so.1",
            "library",
        ] {
            fs::write(fixture.at(file), "").expect("a file");
        }
        Some(fixture)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn plan(&self) -> Plan {
        let path = |name| HostPath::new(self.at(name).to_str().expect("plain")).expect("short");
        let library = path("library");
        Plan::of(&Mounts {
            dir: path("slice"),
            cuda: library,
            nvml: library,
            preload: library,
            mount: library,
            nvml_shim: library,
            device: path("device"),
        })
        .expect("absolute")
    }

    /// A new namespace with the image mounted at `root`; returns its mount points.
    fn round(&self) -> Vec<String> {
        setns(&self.home, CloneFlags::CLONE_NEWNS).expect("back");
        unshare(CloneFlags::CLONE_NEWNS).expect("a namespace");
        let (none, bind) = (None::<&str>, MsFlags::MS_BIND);
        mount(Some(&self.at("image")), &self.at("root"), none, bind, none).expect("a root");
        points()
    }

    /// Inodes and change times of the host's directories, which reveal any access.
    fn host(&self) -> Vec<(PathBuf, u64, i64, i64)> {
        let mut seen = Vec::new();
        let mut left = vec![self.at("host")];
        while let Some(path) = left.pop() {
            let meta = fs::symlink_metadata(&path).expect("there");
            if meta.is_dir() && !path.ends_with("out") {
                let entries = fs::read_dir(&path).expect("a directory");
                left.extend(entries.map(|entry| entry.expect("an entry").path()));
            }
            if !path.ends_with("out") && !path.ends_with("host") {
                seen.push((path, meta.ino(), meta.ctime(), meta.ctime_nsec()));
            }
        }
        seen.sort();
        seen
    }
}

/// Stops the attacker, also after a failed assertion.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Mount points of this namespace.
fn points() -> Vec<String> {
    let all = fs::read_to_string("/proc/thread-self/mountinfo").expect("ours");
    all.lines().filter_map(|line| line.split(' ').nth(4).map(str::to_owned)).collect()
}

fn exchange(one: &Path, other: &Path) {
    // Fails while another exchange has a file in a directory's place; that is harmless.
    let _ = renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE);
}

/// Creates the attacker's links beside their counterparts: to the host by `..`, by the kernel's magic
/// links, and by absolute paths.
fn create_links(fixture: &Fixture) -> Vec<(PathBuf, PathBuf)> {
    let mut pairs = Vec::new();
    for (place, host) in PLACES {
        let host = fixture.at(host);
        let below = host.strip_prefix("/").expect("absolute");
        let up = Path::new("../../../../../../../../../../..").join(below);
        let magic = Path::new("/proc/self/root").join(below);
        for (number, to) in [up, magic, host.clone()].into_iter().enumerate() {
            let link = fixture.at(&format!("image/link{}-{number}", place.replace('/', "-")));
            symlink(to, &link).expect("a link");
            pairs.push((fixture.at("image").join(place), link));
        }
    }
    pairs
}

/// Exchanges all pairs, there and back, and moves a directory out of the image during path lookups
/// through it, until `stop`.
fn exchange_until_stopped(
    pairs: &[(PathBuf, PathBuf)],
    inner: &Path,
    outer: &Path,
    stop: &AtomicBool,
    swaps: &AtomicU64,
) {
    while !stop.load(Relaxed) {
        for (one, other) in pairs {
            exchange(one, other);
            exchange(one, other);
            let _ = fs::rename(inner, outer).and_then(|()| fs::rename(outer, inner));
            swaps.fetch_add(1, Relaxed);
        }
    }
}

fn rounds() -> u64 {
    let given = std::env::var("SWAP_ROUNDS").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(1000)
}

#[test]
fn exchanged_names_never_lead_out() {
    let Some(fixture) = Fixture::new("exchanged_names_never_lead_out") else {
        return;
    };
    let pairs = create_links(&fixture);
    // A library directory whose path leads through one that is moved out of the image.
    symlink("out/in/../../usr/lib", fixture.at("image/lib64")).expect("a link");
    let (plan, inside) = (fixture.plan(), fixture.at("root").display().to_string());
    let (before, stop, swaps) = (fixture.host(), AtomicBool::new(false), AtomicU64::new(0));
    let (mut whole, mut refused, mut naive) = (0u64, 0u64, 0u64);
    std::thread::scope(|scope| {
        let (inner, outer) = (fixture.at("image/out/in"), fixture.at("host/out/in"));
        let (stop, swaps, pairs) = (&stop, &swaps, &pairs);
        let (ready, begin) = channel();
        scope.spawn(move || {
            // A thread that shares root and working directory may not change namespaces.
            unshare(CloneFlags::CLONE_FS).expect("a thread of its own");
            ready.send(()).expect("the test waits");
            exchange_until_stopped(pairs, &inner, &outer, stop, swaps);
        });
        begin.recv().expect("the attacker runs");
        let _end = End(stop);
        for round in 0..rounds() {
            let noted = fixture.round();
            let sources = Sources::open(&plan).expect("the host's own");
            let root = Host::note().and_then(|host| Root::open(&fixture.at("root"), host));
            match mount_and_verify(&root.expect("a root"), &plan, sources) {
                Ok(()) => whole += 1,
                Err(_) => refused += 1,
            }
            let strange: Vec<String> = points().split_off(noted.len());
            let out = strange.iter().find(|point| !point.starts_with(&inside));
            assert_eq!(out, None, "round {round}: a mount outside the root");
            // A hook that works by names would check, then use.
            let list = fixture.at("root/etc/ld.so.preload");
            let looked =
                fs::symlink_metadata(fixture.at("root/etc")).is_ok_and(|meta| meta.is_dir());
            let opened = fs::canonicalize(list).unwrap_or_default();
            naive += u64::from(looked && !opened.starts_with(&inside));
        }
    });
    let swaps = swaps.load(Relaxed);
    eprintln!("{whole} whole, {refused} refused, {swaps} exchanges; {naive} escapes by names");
    assert_eq!(fixture.host(), before, "something of the host's was touched");
    assert!(whole > 0 && refused > 0, "no race was lost or won");
    assert!(rounds() < 1000 || naive > 0, "the attacker never succeeds, so the test shows nothing");
}

/// Unrelated renames, which the kernel cannot tell from an attack.
#[test]
fn others_renames_do_not_refuse_an_innocent_image() {
    const RENAMES: u64 = 50_000;
    let Some(fixture) = Fixture::new("others_renames_do_not_refuse_an_innocent_image") else {
        return;
    };
    symlink("../run", fixture.at("image/etc/run")).expect("a link");
    let _ = fixture.round();
    let (stop, renames) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (one, other) = (fixture.at("host/out/a"), fixture.at("host/out/b"));
        let (stop, renames) = (&stop, &renames);
        fs::write(&one, "").expect("a file");
        scope.spawn(move || {
            while !stop.load(Relaxed) {
                let _ = fs::rename(&one, &other).and_then(|()| fs::rename(&other, &one));
                renames.fetch_add(2, Relaxed);
            }
        });
        let _end = End(stop);
        let host = Host::note().expect("a host");
        let root = Root::open(&fixture.at("root"), host).expect("a root");
        while renames.load(Relaxed) < RENAMES {
            let found = root.open_at("etc/run", libc::O_PATH);
            assert!(found.is_ok(), "{:?}", found.err());
        }
    });
}
