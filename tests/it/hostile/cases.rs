//! The images and their expected results.

use super::image_builder::{Content, LinkTarget, Step, hosts_processes, merge_usr, user_namespace};
use Content::{Device, Dir, File, Hard, Immutable, Link, Long, Mode, Nothing, Pipe, Socket};
use Expected::{Refused, Works};
use LinkTarget::{Canary, Magic, Text, Up};
use Step::{At, Config, Fresh, Over, With};
use serde_json::json;

/// The expected result of a case.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    /// The container runs in its slice.
    Works,
    /// It does not start, and the error has these words.
    Refused(&'static str),
}

/// A name, the steps that build the image, the expected result.
pub type Case = (&'static str, &'static [Step], Expected);

const LIST: &str = "etc/ld.so.preload";
const MULTI: &str = "usr/lib/x86_64-linux-gnu";
const OWN: &str = "lib/x86_64-linux-gnu";
const CUDA: &str = "lib/x86_64-linux-gnu/libcuda.so.1";
/// A directory of CUDA's own, in which images bring a driver.
const COMPAT: &str = "usr/local/cuda-12.4/compat";
const COMPAT_CUDA: &str = "usr/local/cuda-12.4/compat/libcuda.so.1";
const NVML: &str = "lib/x86_64-linux-gnu/libnvidia-ml.so.1";
const MISSING: &str = "No such file";
const LOOP: &str = "ymbolic link";
const DENIED: &str = "Permission denied";
const IRREGULAR: &str = "not a regular file";
const NOT_HERE: &str = "nothing is made in";
const NO_DIR: &str = "Not a directory";
const LONG_NAME: &str = "lib/x86_64-linux-gnu/libcuda.so.\
000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000\
000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000\
0000000000000000000000000000000000000000000000000000000000000000";

/// Links on components of the plan's paths.
pub const LINKS: &[Case] = &[
    ("plain", &[], Works),
    ("/etc to the host", &[At("etc", Link(Canary("etc")))], Refused(MISSING)),
    ("/etc up to the host", &[At("etc", Link(Up("listed")))], Refused(MISSING)),
    ("/etc by init's root", &[At("etc", Link(Magic("/proc/1/root", "listed")))], Refused(DENIED)),
    (
        "/etc by the hook's root",
        &[At("etc", Link(Magic("/proc/self/root", "etc")))],
        Refused(MISSING),
    ),
    (
        "/etc by the hook's root, processes shared",
        &[Config(hosts_processes), At("etc", Link(Magic("/proc/self/root", "etc")))],
        Refused(LOOP),
    ),
    (
        "/etc by the hook's own directory",
        &[Config(hosts_processes), At("etc", Link(Text("/proc/self/cwd")))],
        Refused(LOOP),
    ),
    ("/etc by a descriptor", &[At("etc", Link(Text("/proc/1/fd/0")))], Refused(DENIED)),
    ("/etc into /dev/fd", &[At("etc", Link(Text("/dev/fd")))], Refused(MISSING)),
    ("/etc to itself", &[At("etc", Link(Text("etc")))], Refused(LOOP)),
    ("/etc dangling", &[At("etc", Link(Text("/gone")))], Refused(MISSING)),
    ("/etc elsewhere in the image", &[At("etc", Link(Text("/conf"))), At("conf", Dir)], Works),
    (
        "/etc elsewhere by two links and ..",
        &[At("etc", Link(Text("a/../b"))), At("a", Dir), At("b", Link(Text("../../tmp")))],
        Works,
    ),
    ("the list to the host", &[At(LIST, Link(Canary("listed/ld.so.preload")))], Refused(IRREGULAR)),
    ("the list up to the host", &[At(LIST, Link(Up("listed/ld.so.preload")))], Refused(IRREGULAR)),
    (
        "the list by init's root",
        &[At(LIST, Link(Magic("/proc/1/root", "file")))],
        Refused(IRREGULAR),
    ),
    ("the list to itself", &[At(LIST, Link(Text("ld.so.preload")))], Refused(IRREGULAR)),
    ("the list dangling", &[At(LIST, Link(Text("/gone")))], Refused(IRREGULAR)),
    ("/run to the host", &[At("run", Link(Canary("run")))], Refused(MISSING)),
    ("/run up to the host", &[At("run", Link(Up("run")))], Refused(MISSING)),
    ("/run by init's root", &[At("run", Link(Magic("/proc/1/root", "run")))], Refused(DENIED)),
    (
        "/run to /var/run and back",
        &[At("run", Link(Text("/var/run"))), At("var/run", Link(Text("/run")))],
        Refused(LOOP),
    ),
    ("/run to /var/run", &[At("run", Link(Text("var/run"))), At("var/run", Dir)], Works),
    ("/var/run to /run", &[At("var/run", Link(Text("../run")))], Works),
    ("/run/gpuslice to the host", &[At("run/gpuslice", Link(Canary("run")))], Refused(MISSING)),
    ("/run/gpuslice up to the host", &[At("run/gpuslice", Link(Up("run")))], Refused(MISSING)),
    (
        "/run/gpuslice by init's root",
        &[At("run/gpuslice", Link(Magic("/proc/1/root", "run")))],
        Refused(DENIED),
    ),
    ("/run/gpuslice elsewhere in the image", &[At("run/gpuslice", Link(Text("/tmp")))], Works),
    (
        "/run/gpuslice to the kernel's settings",
        &[Fresh("/sys", "sysfs", &[]), At("run/gpuslice", Link(Text("/sys/kernel/gpuslice")))],
        Refused(MISSING),
    ),
    ("/usr to the host", &[At("usr", Link(Canary("lib")))], Works),
    (
        "/usr/lib by init's root",
        &[At("usr/lib", Link(Magic("/proc/1/root", "lib")))],
        Refused(DENIED),
    ),
    (
        "CUDA's directory by init's root",
        &[At(COMPAT, Link(Magic("/proc/1/root", "driver")))],
        Refused(DENIED),
    ),
    ("CUDA's directory up to the host", &[At(COMPAT, Link(Up("driver")))], Works),
    ("/usr/lib64 dangling", &[At("usr/lib64", Link(Text("/gone")))], Works),
    ("/usr/lib64 to itself", &[At("usr/lib64", Link(Text("lib64")))], Refused(LOOP)),
    ("everything in /usr", &[With(merge_usr)], Works),
    (
        "libcuda.so.1 to the host",
        &[At(CUDA, Link(Canary("driver/libcuda.so.1")))],
        Refused(IRREGULAR),
    ),
    (
        "CUDA's libcuda.so.1 up to the host",
        &[At(COMPAT_CUDA, Link(Up("driver/libcuda.so.1")))],
        Works,
    ),
    ("libcuda.so.1 dangling", &[At(CUDA, Link(Text("libcuda.so.550.1")))], Refused(IRREGULAR)),
    (
        "libcuda.so.1 to its version",
        &[
            At(CUDA, Link(Text("libcuda.so.550.1"))),
            At("lib/x86_64-linux-gnu/libcuda.so.550.1", File("")),
        ],
        Works,
    ),
    (
        "libnvidia-ml.so.1 by init's root",
        &[At(NVML, Link(Magic("/proc/1/root", "file")))],
        Refused(IRREGULAR),
    ),
];

/// Files of the wrong type or size, with the wrong permissions, or missing.
pub const FILES: &[Case] = &[
    ("/etc is a file", &[At("etc", File("x"))], Refused(NO_DIR)),
    ("/etc is a pipe", &[At("etc", Pipe)], Refused(NO_DIR)),
    ("/etc is missing", &[At("etc", Nothing)], Works),
    (
        "/etc is missing, the root read-only",
        &[At("etc", Nothing), Config(|config| config["root"]["readonly"] = json!(true))],
        Works,
    ),
    ("/etc may be listed by nobody", &[At("etc", Mode(0o711))], Works),
    ("/etc cannot be changed", &[At("etc", Immutable)], Refused("not permitted")),
    ("the list is a directory", &[At(LIST, Dir)], Refused(IRREGULAR)),
    ("the list is a pipe", &[At(LIST, Pipe)], Refused(IRREGULAR)),
    ("the list is a socket", &[At(LIST, Socket)], Refused(IRREGULAR)),
    ("the list is a device", &[At(LIST, Device)], Refused(IRREGULAR)),
    ("the list is a file of the host's too", &[At(LIST, Hard("listed/ld.so.preload"))], Works),
    ("the list cannot be changed", &[At(LIST, File("")), At(LIST, Immutable)], Works),
    ("the list is as long as it may be", &[At(LIST, Long(256))], Works),
    ("the list is longer", &[At(LIST, Long(257))], Refused("too large")),
    ("the list is binary", &[At(LIST, File("\0\0\r\n# x\r\n/a.so:/b.so\t/c.so\0\u{7f}"))], Works),
    ("the list has one endless line", &[At(LIST, File("# no end, no newline"))], Works),
    ("/run is missing", &[At("run", Nothing)], Works),
    ("/run is a file", &[At("run", File(""))], Refused(NO_DIR)),
    ("/run is everybody's", &[At("run", Mode(0o1777))], Works),
    ("/run/gpuslice is a file", &[At("run/gpuslice", File(""))], Refused(NO_DIR)),
    ("/run/gpuslice is a pipe", &[At("run/gpuslice", Pipe)], Refused(NO_DIR)),
    ("/run/gpuslice is full", &[At("run/gpuslice/driver/libcuda.so.1", Dir)], Works),
    ("a library directory is a file", &[At(MULTI, File(""))], Works),
    ("CUDA's directory is a pipe", &[At(COMPAT, Pipe)], Works),
    ("a library directory may be read by nobody", &[At(OWN, Mode(0o311))], Works),
    ("libcuda.so.1 is a directory", &[At(CUDA, Dir)], Refused(IRREGULAR)),
    ("CUDA's libcuda.so.1 is a pipe", &[At(COMPAT_CUDA, Pipe)], Works),
    ("libcuda.so.1 is a device", &[At(CUDA, Device)], Refused(IRREGULAR)),
    ("libcuda.so.1 is a file of the host's too", &[At(CUDA, Hard("driver/libcuda.so.1"))], Works),
    ("libnvidia-ml.so.1 is a socket", &[At(NVML, Socket)], Refused(IRREGULAR)),
    (
        "names with newlines",
        &[
            At("lib/x86_64-linux-gnu/libcuda.so.\n1", File("")),
            At("etc/\n/ld.so.preload", File("")),
        ],
        Works,
    ),
    ("a version of 244 digits", &[At(LONG_NAME, File(""))], Works),
];

/// Mounts and namespaces of the configuration.
pub const MOUNTS: &[Case] = &[
    ("a volume at /etc", &[Over("/etc", "etc")], Refused(NOT_HERE)),
    ("a volume at /etc with a list", &[Over("/etc", "listed")], Works),
    (
        "a file of the host's at the list",
        &[At(LIST, File("")), Over("/etc/ld.so.preload", "file")],
        Works,
    ),
    ("a file system of its own at /etc", &[Fresh("/etc", "tmpfs", &[])], Refused(NOT_HERE)),
    ("the processes at /etc", &[Fresh("/etc", "proc", &[])], Refused(NOT_HERE)),
    ("a volume at /run/gpuslice", &[Over("/run/gpuslice", "empty")], Works),
    ("a file of the host's at /run/gpuslice", &[Over("/run/gpuslice", "file")], Refused(NO_DIR)),
    ("a file system of its own at /run", &[Fresh("/run", "tmpfs", &["mode=755"])], Works),
    ("a read-only file system at /run", &[Fresh("/run", "tmpfs", &["ro"])], Works),
    ("the kernel's settings at /run", &[Fresh("/run", "sysfs", &[])], Refused("not permitted")),
    (
        "/run is a link to a volume",
        &[Over("/data", "empty"), At("run", Link(Text("/data")))],
        Refused(NOT_HERE),
    ),
    ("a volume with a driver", &[Over("/usr/lib/x86_64-linux-gnu", "driver")], Works),
    ("a volume with a driver of CUDA's", &[Over("/usr/local/cuda/compat", "driver")], Works),
    (
        "a file of the host's at libcuda.so.1",
        &[Over("/lib/x86_64-linux-gnu/libcuda.so.1", "file")],
        Works,
    ),
    ("a volume at /dev/gpuslice-sim", &[Over("/dev/gpuslice-sim", "empty")], Works),
    ("users of its own", &[Config(user_namespace), Fresh("/run", "tmpfs", &["mode=755"])], Works),
    ("a read-only root", &[Config(|config| config["root"]["readonly"] = json!(true))], Works),
    (
        "a shared root",
        &[Config(|config| config["linux"]["rootfsPropagation"] = json!("rshared"))],
        Works,
    ),
    (
        "a slave root",
        &[Config(|config| config["linux"]["rootfsPropagation"] = json!("rslave"))],
        Works,
    ),
    (
        "a private root",
        &[Config(|config| config["linux"]["rootfsPropagation"] = json!("rprivate"))],
        Works,
    ),
    ("an environment for loaders", &[Config(loaders)], Works),
    ("libcuda.so.1 in 65 versions", &[With(versions)], Refused("too many versions")),
];

fn versions(rootfs: &std::path::Path, _: &std::path::Path) {
    for number in 0..65 {
        let name = format!("libcuda.so.{number}.1");
        std::fs::write(rootfs.join(OWN).join(name), "").expect("a file");
    }
}

/// Variables that make loaders, interpreters and the C library open files of the image's choice.
fn loaders(config: &mut serde_json::Value) {
    let variables = [
        "LD_PRELOAD=./evil.so:/proc/self/cwd/evil.so",
        "LD_AUDIT=/evil.so",
        "LD_LIBRARY_PATH=.:/tmp",
        "GCONV_PATH=/tmp",
        "GLIBC_TUNABLES=glibc.malloc.check=3:glibc.rtld.optional_static_tls=99999999",
        "BASH_ENV=/evil.sh",
        "HOSTALIASES=/etc/shadow",
        "GPUSLICE_SIM_DEVICE=/",
        "PATH=/bin",
    ];
    config["process"]["env"] = json!(variables);
}
