//! Injection of the shim into a plain process: the two methods of `gpuslice run`.
//!
//! *Mount*: in a private mount namespace the shim is bind-mounted over the driver's own files, so
//! every path to the driver leads to the shim. The shim is preloaded as well, for programs that bring
//! a driver of that name in a directory of their own. This method needs root, or user namespaces and
//! an existing `/run/gpuslice` to mount on. *Preload*: environment variables, which a program can
//! drop; the fallback, and reported as such.

use crate::mount_point::MountPoint;
use anyhow::{Context, Result, bail};
use gpuslice_wire::admin::Mounts;
use gpuslice_wire::text::HostPath;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Where the shim looks for its socket and the real driver.
const TENANT_DIR: &str = "/run/gpuslice";
/// A name of the shim in a slice's own directory, for installations in paths that LD_PRELOAD cannot hold.
const PRELOADED: &str = "libgpuslice.so";
/// Advice for a directory that preload injection cannot use.
const ELSEWHERE: &str = "use another TMPDIR for a private daemon, another --runtime-dir of gpusliced, or --inject mount";

/// Injection method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Injection {
    /// Use mount where a mount namespace is available, preload otherwise
    Auto,
    /// Bind-mount the shim over the driver's files in a private mount namespace
    Mount,
    /// Load the shim through LD_PRELOAD
    Preload,
}

/// A path of the daemon's answer.
fn path(text: &HostPath) -> &Path {
    Path::new(text.as_str())
}

/// The directory of the driver's libraries.
fn driver_dir(mounts: &Mounts) -> &Path {
    path(&mounts.cuda).parent().unwrap_or(Path::new("/"))
}

/// Whether a command may have a mount namespace here: a child tries to enter it and exits at once.
fn can_enter_namespace() -> bool {
    let mut probe = Command::new("/proc/self/exe");
    probe.arg("--version").stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    // SAFETY: the closure only makes system calls on data prepared before the fork.
    unsafe { probe.pre_exec(enter_namespace) };
    probe.status().is_ok_and(|status| status.success())
}

/// Prepares `command` to run in the slice by the injection method. Returns the method's name and a
/// guard to keep alive as long as the command.
///
/// # Errors
/// The method's directory or mount point could not be made.
pub fn inject(
    command: &mut Command,
    mounts: &Mounts,
    method: Injection,
) -> Result<(&'static str, Injected)> {
    if !mounts.device.is_empty() {
        command.env("GPUSLICE_SIM_DEVICE", path(&mounts.device));
    }
    let hold = || MountPoint::hold(Path::new(TENANT_DIR));
    match mount_point(method, hold, can_enter_namespace)? {
        Some(held) => inject_by_mount(command, mounts, held),
        None => inject_by_preload(command, mounts),
    }
}

/// The held mount point for mount injection; `None`: preload injection is used.
///
/// Only root can make the directory, and a command of root's that made it removes it at its end. So another user's
/// command may see it and not be able to hold it. A process that keeps it locked is no reason for another method: any
/// user could choose the weaker one for all others.
fn mount_point(
    method: Injection,
    hold: impl FnOnce() -> io::Result<MountPoint>,
    can_enter: impl FnOnce() -> bool,
) -> Result<Option<MountPoint>> {
    if method == Injection::Preload {
        return Ok(None);
    }
    match hold() {
        Ok(held) if method == Injection::Mount => Ok(Some(held)),
        Ok(held) => Ok(Some(held).filter(|_| can_enter())),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error).with_context(|| {
            format!("another process keeps the directory {TENANT_DIR} locked; end it (lslocks shows it), or use --inject preload")
        }),
        Err(_) if method == Injection::Auto => Ok(None),
        Err(error) => Err(error).with_context(|| {
            format!("mount injection needs the directory {TENANT_DIR}, which only root can make; use --inject preload")
        }),
    }
}

/// Holds the mount point that injection needs; releases it when dropped.
pub struct Injected {
    _mount_point: Option<MountPoint>,
}

fn inject_by_mount(
    command: &mut Command,
    mounts: &Mounts,
    held: MountPoint,
) -> Result<(&'static str, Injected)> {
    let real = |of: &HostPath| path(of).canonicalize().with_context(|| of.to_string());
    let tenant = Path::new(TENANT_DIR);
    // First the real driver at its private path, then the shim over the driver's own name.
    let mut binds = vec![(path(&mounts.dir).to_owned(), tenant.to_owned())];
    let cuda = real(&mounts.cuda)?;
    binds.push((cuda.clone(), tenant.join("driver/libcuda.so.1")));
    binds.push((path(&mounts.mount).to_owned(), cuda));
    if !mounts.nvml.is_empty() {
        let nvml = real(&mounts.nvml)?;
        binds.push((nvml.clone(), tenant.join("driver/libnvidia-ml.so.1")));
        binds.push((path(&mounts.nvml_shim).to_owned(), nvml));
    }
    library_path(command, driver_dir(mounts))?;
    if !holds(path(&mounts.preload), b" :") {
        preload_first(command, path(&mounts.preload).as_os_str());
    }
    // Variables of an enclosing slice.
    command.env_remove("GPUSLICE_SOCKET");
    command.env_remove("GPUSLICE_DRIVER_DIR");
    // SAFETY: the closure only makes system calls on data prepared before the fork.
    unsafe {
        command.pre_exec(move || {
            enter_namespace()?;
            binds.iter().try_for_each(|(from, to)| bind(from, to))
        });
    }
    Ok(("mount (private mount namespace)", Injected { _mount_point: Some(held) }))
}

/// Enters a private mount namespace; for an ordinary user, inside a user namespace that maps the
/// user's own ids.
fn enter_namespace() -> io::Result<()> {
    let (uid, gid) = (nix::unistd::getuid(), nix::unistd::getgid());
    if uid.is_root() {
        unshare(CloneFlags::CLONE_NEWNS)?;
    } else {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)?;
    Ok(())
}

fn bind(from: &Path, to: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_BIND;
    mount(Some(from), to, None::<&str>, flags, None::<&str>)?;
    Ok(())
}

fn inject_by_preload(command: &mut Command, mounts: &Mounts) -> Result<(&'static str, Injected)> {
    // Links under the names that programs load: they lead to the shim where SONAMEs are ignored, and
    // are removed with the slice.
    let links = path(&mounts.dir).join("lib");
    std::fs::create_dir(&links).with_context(|| links.display().to_string())?;
    let mut names = vec![
        (PRELOADED, &mounts.preload),
        ("libcuda.so", &mounts.preload),
        ("libcuda.so.1", &mounts.preload),
    ];
    if !mounts.nvml.is_empty() {
        names.push(("libnvidia-ml.so.1", &mounts.nvml_shim));
    }
    for (name, target) in names {
        std::os::unix::fs::symlink(path(target), links.join(name))?;
    }
    library_path(command, driver_dir(mounts))?;
    library_path(command, &links)?;
    let preload = match holds(path(&mounts.preload), b" :") {
        false => path(&mounts.preload).to_owned(),
        true => links.join(PRELOADED),
    }
    .into_os_string();
    if holds(Path::new(&preload), b" :") {
        bail!("{}: LD_PRELOAD holds no path with spaces or colons; {ELSEWHERE}", links.display());
    }
    let socket = path(&mounts.dir).join("tenant.sock");
    preload_first(command, &preload);
    command.env("GPUSLICE_SOCKET", socket);
    command.env("GPUSLICE_DRIVER_DIR", driver_dir(mounts));
    Ok(("preload (a program that drops LD_PRELOAD escapes it)", Injected { _mount_point: None }))
}

/// Puts `library` first in the command's LD_PRELOAD.
fn preload_first(command: &mut Command, library: &OsStr) {
    let mut list = library.to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|text| !text.is_empty()) {
        list.push(":");
        list.push(others);
    }
    command.env("LD_PRELOAD", list);
}

/// Whether a path contains a separator of path lists.
fn holds(path: &Path, separators: &[u8]) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    bytes.iter().any(|byte| separators.contains(byte))
}

/// Puts `dir` in front of the command's LD_LIBRARY_PATH.
///
/// # Errors
/// The path contains a separator: the loader would split it and could find a driver without the shim.
fn library_path(command: &mut Command, dir: &Path) -> Result<()> {
    if holds(dir, b":;") {
        bail!(
            "{}: the loader searches no path with colons or semicolons; give it another name",
            dir.display()
        );
    }
    let own = command.get_envs().find(|(key, _)| *key == "LD_LIBRARY_PATH");
    let before = match own {
        Some((_, value)) => value.map(Into::into),
        None => std::env::var_os("LD_LIBRARY_PATH"),
    };
    let mut path = dir.as_os_str().to_owned();
    if let Some(before) = before.filter(|text| !text.is_empty()) {
        path.push(":");
        path.push(before);
    }
    command.env("LD_LIBRARY_PATH", path);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_that_cannot_be_held_leaves_preload_injection() {
        let denied = || Err(io::ErrorKind::PermissionDenied.into());
        assert!(mount_point(Injection::Auto, denied, || true).expect("preload").is_none());
        let error = mount_point(Injection::Mount, denied, || true).err().expect("it was asked for");
        assert!(
            format!("{error:#}").contains("use --inject preload: permission denied"),
            "{error:#}"
        );
    }

    #[test]
    fn a_mount_point_that_is_kept_locked_chooses_no_weaker_method() {
        for method in [Injection::Auto, Injection::Mount] {
            let locked = || Err(io::ErrorKind::WouldBlock.into());
            let error = mount_point(method, locked, || true).err().expect("it is locked");
            assert!(format!("{error:#}").contains("/run/gpuslice locked; end it"), "{error:#}");
        }
        let locked = || Err(io::ErrorKind::WouldBlock.into());
        assert!(mount_point(Injection::Preload, locked, || true).expect("preload").is_none());
    }

    #[test]
    fn a_mount_point_is_held_where_it_is_used() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("point");
        let held = |method, can_enter| {
            let point = mount_point(method, || MountPoint::hold(&path), || can_enter);
            let point = point.expect("it can be held");
            (point.is_some(), path.exists())
        };
        assert_eq!(held(Injection::Auto, true), (true, true));
        assert_eq!(held(Injection::Mount, false), (true, true));
        assert_eq!(held(Injection::Auto, false), (false, false));
        assert_eq!(held(Injection::Preload, true), (false, false));
    }
}
