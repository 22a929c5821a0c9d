//! An image that changes while we work in it: somebody exchanges directories and links to the host
//! at full speed, and nothing we make or mount may ever land outside the root.
//!
//! The root is a bind mount, as runtimes make it; who races us uses the directory below it, from
//! another mount namespace, where no mount of ours keeps a name from being exchanged. So every open,
//! every `mkdir` and every mount has a moment before it at which its name means something else.
//! Each round has a namespace of its own. `SWAP_ROUNDS` says how many.

use crate::apply::{Sources, lay_and_look};
use crate::grant::Granted;
use crate::place::{Host, Root};
use crate::plan::Plan;
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

/// Where the racer's links lead: the host's directories that look like the container's.
const PLACES: [(&str, &str); 4] = [
    ("etc", "host/etc"),
    ("run", "host/run"),
    ("usr/lib/x86_64-linux-gnu", "host/lib"),
    ("etc/ld.so.preload", "host/etc/list"),
];

/// Directories: an image, the host beside it, our sources. In a mount namespace of this thread.
struct Course {
    dir: TempDir,
    home: File,
}

impl Course {
    /// `None`, said, where this thread may not have a namespace.
    fn new(test: &str) -> Option<Course> {
        if !nix::unistd::geteuid().is_root() {
            let line = format!("SKIP {test}: mounts need root\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        unshare(CloneFlags::CLONE_NEWNS).expect("a namespace");
        let (none, private) = (None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
        mount(none, "/", none, private, none).expect("private");
        let course = Course {
            dir,
            home: File::open("/proc/thread-self/ns/mnt").expect("ours"),
        };
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
            fs::create_dir_all(course.at(sub)).expect("a directory");
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
            fs::write(course.at(file), "").expect("a file");
        }
        Some(course)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn plan(&self) -> Plan {
        let library = || self.at("library");
        Plan::of(&Granted {
            dir: self.at("slice"),
            cuda: library(),
            nvml: Some(library()),
            preload: library(),
            mount: library(),
            nvml_shim: library(),
            device: Some(self.at("device")),
        })
        .expect("absolute")
    }

    /// A fresh namespace with the image mounted at `root`, and the noted mounts.
    fn round(&self) -> Vec<String> {
        setns(&self.home, CloneFlags::CLONE_NEWNS).expect("back");
        unshare(CloneFlags::CLONE_NEWNS).expect("a namespace");
        let (none, bind) = (None::<&str>, MsFlags::MS_BIND);
        mount(Some(&self.at("image")), &self.at("root"), none, bind, none).expect("a root");
        points()
    }

    /// What of the host's directories would show that somebody was there.
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

/// Ends a race, also one that a failed assertion leaves.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Where something is mounted.
fn points() -> Vec<String> {
    let all = fs::read_to_string("/proc/thread-self/mountinfo").expect("ours");
    all.lines()
        .filter_map(|line| line.split(' ').nth(4).map(str::to_owned))
        .collect()
}

fn exchange(one: &Path, other: &Path) {
    // Another exchange may have put a file where a directory was; then this one has to wait.
    let _ = renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE);
}

/// Lays the racer's links beside what they are exchanged with: to the host by `..`, by the kernel's own
/// links, and from `/` on.
fn lay_links(course: &Course) -> Vec<(PathBuf, PathBuf)> {
    let mut pairs = Vec::new();
    for (place, host) in PLACES {
        let host = course.at(host);
        let below = host.strip_prefix("/").expect("absolute");
        let up = Path::new("../../../../../../../../../../..").join(below);
        let magic = Path::new("/proc/self/root").join(below);
        for (number, to) in [up, magic, host.clone()].into_iter().enumerate() {
            let link = course.at(&format!("image/link{}-{number}", place.replace('/', "-")));
            symlink(to, &link).expect("a link");
            pairs.push((course.at("image").join(place), link));
        }
    }
    pairs
}

/// Exchanges all pairs, there and back, and takes a directory out of the image from under whoever is
/// on the way through it, until told to stop.
fn race(
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
    let Some(course) = Course::new("exchanged_names_never_lead_out") else {
        return;
    };
    let pairs = lay_links(&course);
    // A library directory by way of one that is taken out of the image meanwhile.
    symlink("out/in/../../usr/lib", course.at("image/lib64")).expect("a link");
    let (plan, inside) = (course.plan(), course.at("root").display().to_string());
    let (before, stop, swaps) = (course.host(), AtomicBool::new(false), AtomicU64::new(0));
    let (mut whole, mut refused, mut naive) = (0u64, 0u64, 0u64);
    std::thread::scope(|scope| {
        let (inner, outer) = (course.at("image/out/in"), course.at("host/out/in"));
        let (stop, swaps, pairs) = (&stop, &swaps, &pairs);
        let (ready, begin) = channel();
        scope.spawn(move || {
            // Who shares a root and a working directory with others may not change namespaces.
            unshare(CloneFlags::CLONE_FS).expect("a thread of its own");
            ready.send(()).expect("somebody waits");
            race(pairs, &inner, &outer, stop, swaps);
        });
        begin.recv().expect("the racer runs");
        let _end = End(stop);
        for round in 0..rounds() {
            let noted = course.round();
            let sources = Sources::open(&plan).expect("the host's own");
            let root = Host::note().and_then(|host| Root::open(&course.at("root"), host));
            match lay_and_look(&root.expect("a root"), &plan, sources) {
                Ok(()) => whole += 1,
                Err(_) => refused += 1,
            }
            let strange: Vec<String> = points().split_off(noted.len());
            let out = strange.iter().find(|point| !point.starts_with(&inside));
            assert_eq!(out, None, "round {round}: a mount outside the root");
            // What a hook by names would do: look, then act.
            let list = course.at("root/etc/ld.so.preload");
            let looked =
                fs::symlink_metadata(course.at("root/etc")).is_ok_and(|meta| meta.is_dir());
            let opened = fs::canonicalize(list).unwrap_or_default();
            naive += u64::from(looked && !opened.starts_with(&inside));
        }
    });
    let swaps = swaps.load(Relaxed);
    eprintln!("{whole} whole, {refused} refused, {swaps} exchanges; {naive} escapes by names");
    assert_eq!(course.host(), before, "something of the host's was touched");
    assert!(whole > 0 && refused > 0, "nothing raced");
    assert!(rounds() < 1000 || naive > 0, "the racer has no teeth");
}

/// Renames that have nothing to do with us, which the kernel cannot know.
#[test]
fn others_renames_do_not_refuse_an_innocent_image() {
    const RENAMES: u64 = 50_000;
    let Some(course) = Course::new("others_renames_do_not_refuse_an_innocent_image") else {
        return;
    };
    symlink("../run", course.at("image/etc/run")).expect("a link");
    let _ = course.round();
    let (stop, renames) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (one, other) = (course.at("host/out/a"), course.at("host/out/b"));
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
        let root = Root::open(&course.at("root"), host).expect("a root");
        while renames.load(Relaxed) < RENAMES {
            let found = root.open_at("etc/run", libc::O_PATH);
            assert!(found.is_ok(), "{:?}", found.err());
        }
    });
}
