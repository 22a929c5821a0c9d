//! The programs that try the ways, and a driver as a system installs one: a file and its names.

use crate::harness::bundle::Bundle;
use crate::harness::{copy_of, copy_program, library, target_dir};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/apps/injection");
/// The file behind the driver's names, by which daemon and CLI recognise the simulated GPU.
const FILE: &str = "libgpuslice_sim_cuda.so";
/// File names of an installed driver.
const INSTALLED: (&str, &str) = ("libcuda.so.575.57.08", "libnvidia-ml.so.575.57.08");
const LIBRARIES: &str = "lib/x86_64-linux-gnu";
/// The owner of the set-user-id program.
const OWNER: u32 = 65533;

/// Paths as the script sees them.
pub struct Home {
    pub programs: String,
    pub driver: String,
    /// Name of the driver's file.
    pub file: &'static str,
    pub temporary: String,
}

/// Compiles a program or library, which is the same for all tests.
fn cc(made: &OnceLock<File>, arguments: &[&str], out: &Path) {
    copy_of(made, out, |to| {
        let mut command = Command::new("cc");
        command.args(["-O1", "-o"]).arg(to).args(arguments);
        let output = command.output().expect("a C compiler");
        assert!(output.status.success(), "{command:?}: {output:?}");
    });
}

/// Installs the simulated driver in `dir`: its files under these names, and a system's links.
pub fn driver(dir: &Path, cuda: &str, nvml: &str) {
    fs::create_dir_all(dir).expect("a directory");
    let built =
        [(cuda, FILE, "gpuslice-sim-cuda"), (nvml, "libgpuslice_sim_nvml.so", "gpuslice-sim-nvml")];
    for (to, from, package) in built {
        copy_program(&library(from, package), &dir.join(to));
    }
    for (name, file) in
        [("libcuda.so.1", cuda), ("libcuda.so", "libcuda.so.1"), ("libnvidia-ml.so.1", nvml)]
    {
        let _ = fs::remove_file(dir.join(name));
        symlink(file, dir.join(name)).expect("a link");
    }
}

impl Home {
    /// Builds everything below `root`.
    pub fn make(root: &Path) -> Home {
        let at = |name: &str| root.join(name);
        let text = |path: PathBuf| path.to_str().expect("plain").to_owned();
        driver(&at("driver"), FILE, "libgpuslice_sim_nvml.so");
        for dir in ["ways", "ways/compat", "scratch"] {
            fs::create_dir_all(at(dir)).expect("a directory");
        }
        let (way, plugin) = (format!("{SOURCES}/way.c"), format!("{SOURCES}/plugin.c"));
        let cuda = text(at("driver/libcuda.so.1"));
        let lazily = "-Wl,--allow-shlib-undefined";
        let linked = ["-DLINKED", &way, &plugin, &cuda, lazily, "-ldl"];
        static MADE: [OnceLock<File>; 4] = [const { OnceLock::new() }; 4];
        cc(&MADE[0], &[&way, "-ldl"], &at("ways/way"));
        cc(&MADE[1], &linked, &at("ways/linked"));
        cc(&MADE[2], &["-static", "-w", &way], &at("ways/static"));
        cc(&MADE[3], &["-shared", "-fPIC", &plugin, &cuda, lazily], &at("ways/plugin.so"));
        for copy in ["ways/brought.so", "ways/compat/libcuda.so.1"] {
            copy_program(&at("driver").join(FILE), &at(copy));
        }
        copy_program(&at("ways/way"), &at("ways/setuid"));
        set_user(&at("ways/setuid"));
        Home {
            programs: text(at("ways")),
            driver: text(at("driver")),
            file: FILE,
            temporary: text(at("scratch")),
        }
    }

    /// The same in a container's root filesystem.
    pub fn inside(&self, bundle: &Bundle) -> Home {
        for program in ["env", "cp", "setsid"] {
            let path = Path::new("/usr/bin").join(program);
            let path = if path.exists() { path } else { Path::new("/bin").join(program) };
            bundle.add_program(&path, &format!("bin/{program}"));
        }
        let libraries = bundle.rootfs().join(LIBRARIES);
        // The driver's own dependencies too; every distribution's libraries include the loader.
        let real = Path::new(&self.driver).join(FILE);
        bundle.add_program(&real, &format!("{LIBRARIES}/{}", INSTALLED.0));
        let loader = "ld-linux-x86-64.so.2";
        copy_program(&Path::new("/lib64").join(loader), &libraries.join(loader));
        driver(&libraries, INSTALLED.0, INSTALLED.1);
        let to = bundle.rootfs().join("ways");
        fs::create_dir_all(to.join("compat")).expect("a directory");
        for name in
            ["way", "linked", "static", "setuid", "plugin.so", "brought.so", "compat/libcuda.so.1"]
        {
            copy_program(&Path::new(&self.programs).join(name), &to.join(name));
        }
        set_user(&to.join("setuid"));
        Home {
            programs: "/ways".into(),
            driver: format!("/{LIBRARIES}"),
            file: INSTALLED.0,
            temporary: "/tmp".into(),
        }
    }
}

fn set_user(program: &Path) {
    chown(program, Some(OWNER), None).expect("root may");
    fs::set_permissions(program, Permissions::from_mode(0o4755)).expect("root may");
}

/// Lets all users read a test's directory, and use its device and scratch.
pub fn publish(root: &Path) {
    let open = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
    open(root, 0o755).expect("ours");
    open(&root.join("scratch"), 0o1777).expect("ours");
    if root.join("device").exists() {
        open(&root.join("device"), 0o711).expect("ours");
    }
}

/// Copies gpuslice to `root/bin`, for users without read access to this build.
pub fn install(root: &Path) {
    let bin = root.join("bin");
    fs::create_dir(&bin).expect("a directory");
    let libraries = ["libgpuslice.so", "libgpuslice_mount.so", "libgpuslice_nvml.so"];
    for name in ["gpuslice", "gpusliced"].iter().chain(&libraries) {
        copy_program(&target_dir().join(name), &bin.join(name)); // made by packaging/stage
        fs::set_permissions(bin.join(name), Permissions::from_mode(0o755)).expect("ours");
    }
}
