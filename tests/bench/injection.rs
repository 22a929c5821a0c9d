//! How the measured program finds its driver: bare, or by one of the two injection methods.
//!
//! The mount-injected shim names the real driver by an absolute path below `/run/gpuslice`, so its
//! child runs in a private mount namespace where that path exists.

use crate::child::ROWS;
use crate::stats;
use std::ffi::CString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// How the measured program reaches the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// Without the shim.
    Bare,
    /// `LD_PRELOAD`.
    Preload,
    /// The shim in place of the driver's library.
    Mount,
}

impl Injection {
    /// For the report.
    pub fn name(self) -> &'static str {
        match self {
            Injection::Bare => "bare",
            Injection::Preload => "preload",
            Injection::Mount => "mount",
        }
    }

    /// One child; ns per call in the order of [`ROWS`].
    ///
    /// # Errors
    /// The child's standard error if it failed.
    pub fn measure(self, directory: &Path, threads: usize) -> Result<Vec<f64>, String> {
        let myself = std::env::current_exe().map_err(|error| error.to_string())?;
        let home = myself.parent().ok_or("no directory of my own")?;
        let (library, capped) = match self {
            Injection::Bare => ("libcuda.so.1", "free"),
            Injection::Preload => ("libgpuslice.so", "capped"),
            Injection::Mount => ("libgpuslice_mount.so", "capped"),
        };
        let threads = threads.to_string();
        let mut command = Command::new(&myself);
        if self == Injection::Mount {
            command.arg("inside").arg(directory).arg(&myself);
        }
        command.args(["child", library, capped, &threads]);
        command.env_clear().env("LD_LIBRARY_PATH", directory).env("LD_BIND_NOW", "1");
        if let Some(most) = std::env::var_os(stats::ROUNDS) {
            command.env(stats::ROUNDS, most);
        }
        match self {
            Injection::Bare => {}
            Injection::Preload => {
                command.env("LD_PRELOAD", home.join(library));
                command.env("GPUSLICE_DRIVER_DIR", directory);
                command.env("GPUSLICE_SOCKET", directory.join("tenant.sock"));
            }
            Injection::Mount => {
                let place = directory.join("mount");
                std::fs::create_dir_all(&place).map_err(|error| error.to_string())?;
                let link = place.join("libcuda.so.1");
                let _ = std::fs::remove_file(&link);
                std::os::unix::fs::symlink(home.join(library), &link)
                    .map_err(|error| error.to_string())?;
                command.env("LD_LIBRARY_PATH", place);
            }
        }
        let output = command.output().map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let values: Vec<f64> =
            text.lines().filter_map(|line| line.split(' ').nth(2)?.parse().ok()).collect();
        if !output.status.success() || values.len() != ROWS.len() {
            let why = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{}: {} {why}", self.name(), output.status));
        }
        Ok(values)
    }
}

/// Runs `command` where `/run/gpuslice` is `directory`, its driver under `driver/`.
pub fn inside(directory: &Path, command: &[&str]) -> ExitCode {
    match enter(directory) {
        Ok(()) => {
            let error = Command::new(command[0]).args(&command[1..]).exec();
            eprintln!("{}: {error}", command[0]);
        }
        Err(error) => eprintln!("no private mount namespace: {error}"),
    }
    ExitCode::FAILURE
}

fn enter(directory: &Path) -> Result<(), String> {
    let path = |path: &Path| CString::new(path.as_os_str().as_encoded_bytes().to_vec());
    // SAFETY: takes no arguments and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let spaces = libc::CLONE_NEWNS | if root { 0 } else { libc::CLONE_NEWUSER };
    let check = |result: i32, what: &str| match result {
        0 => Ok(()),
        _ => Err(format!("{what}: {}", std::io::Error::last_os_error())),
    };
    let mount = |from: &Path, to: &str, flags: u64| {
        let from = path(from).map_err(|error| error.to_string())?;
        let to = CString::new(to).map_err(|error| error.to_string())?;
        let kind = if flags == 0 { c"tmpfs".as_ptr() } else { std::ptr::null() };
        // SAFETY: NUL-terminated paths that live through the call.
        let result =
            unsafe { libc::mount(from.as_ptr(), to.as_ptr(), kind, flags, std::ptr::null()) };
        check(result, &format!("mount on {}", to.to_string_lossy()))
    };
    // SAFETY: takes flags alone; this process has one thread.
    check(unsafe { libc::unshare(spaces) }, "unshare")?;
    mount(Path::new("none"), "/", libc::MS_REC | libc::MS_PRIVATE)?;
    mount(Path::new("none"), "/mnt", 0)?;
    std::fs::create_dir_all("/mnt/driver").map_err(|error| error.to_string())?;
    std::fs::copy(directory.join("libcuda.so.1"), "/mnt/driver/libcuda.so.1")
        .map_err(|error| error.to_string())?;
    std::os::unix::fs::symlink(directory.join("tenant.sock"), "/mnt/tenant.sock")
        .map_err(|error| error.to_string())?;
    if !Path::new("/run/gpuslice").exists() {
        // A copy of the directory's entries is not needed: nothing measured reads /run.
        mount(Path::new("none"), "/run", 0)?;
        std::fs::create_dir("/run/gpuslice").map_err(|error| error.to_string())?;
    }
    mount(Path::new("/mnt"), "/run/gpuslice", libc::MS_BIND)
}
