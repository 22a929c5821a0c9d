//! The device directory: its place, its creation and its removal.
//!
//! ```text
//! DIR/            0700, its owner's alone: no other user of the machine gets past it
//! DIR/node/       the device's files; what a container gets mounted at /dev/gpuslice-sim
//! ```
//! It is made by the process that opens it first, and must never be seen half-made. The maker holds a
//! `flock` on DIR, writes all other files, and gives `state` its name last: a node with a `state` is
//! complete. Processes in a container have other users than the host's, so root's files may be
//! used by everyone; but only through the mount is there a way to them.

use crate::config::{Config, DeviceConfig};
use crate::error::{ConfigError, Error};
use crate::exports::Exports;
use crate::faults::Faults;
use crate::folder::{Folder, PRIVATE, user};
use crate::layout::{Device, FILE_BYTES, Header, MAGIC, VERSION};
use crate::limits::{MAX_GPUS, NAME_BYTES, PAGE_BYTES};
use crate::mapping::Mapping;
use std::fs::{File, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const STATE: &str = "state";
const NEW_STATE: &str = "state.new";
const LOCKS: &str = "locks";
const EXPORTS: &str = "exports";
/// Its open files stand for those of the driver's control node.
const CONTROL: &str = "control";

/// The device's files, in the device directory.
const NODE: &str = "node";
/// Where a container has them; only root puts anything into /dev.
const IN_CONTAINER: &str = "/dev/gpuslice-sim";

/// The files of a living device.
pub(crate) struct Opened {
    pub dir: PathBuf,
    pub mapping: Mapping,
    pub locks: File,
    pub exports: Exports,
    pub vram: Vec<File>,
}

/// `GPUSLICE_SIM_DEVICE`, else `/dev/gpuslice-sim` where that exists, else a directory of the
/// calling user's own in `/dev/shm`.
pub fn default_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("GPUSLICE_SIM_DEVICE").filter(|dir| !dir.is_empty()) {
        return dir.into();
    }
    let node = Path::new(IN_CONTAINER);
    if node.exists() {
        return node.into();
    }
    format!("/dev/shm/gpuslice-sim-{}", user()).into()
}

/// The file whose openings stand for those of the driver's control node.
pub(crate) fn control_file(dir: &Path) -> PathBuf {
    dir.join(CONTROL)
}

/// Makes a device directory, and those above it; one that exists already is an error.
pub fn create(dir: &Path, config: &Config) -> Result<(), Error> {
    if let Some(parent) = dir.parent().filter(|parent| !parent.exists()) {
        std::fs::create_dir_all(parent).map_err(io_error("making", parent))?;
    }
    let (outer, _held) = hold(dir)?;
    if node_in(&outer)?.is_some() {
        let source = io::Error::from(ErrorKind::AlreadyExists);
        return Err(Error::Io { doing: "making", path: dir.into(), source });
    }
    build(&outer, config).map(drop)
}

/// Removes a device directory. Processes that use it go on with what they have mapped.
pub fn destroy(dir: &Path) -> Result<(), Error> {
    let outer = Folder::open(dir).map_err(io_error("opening", dir))?;
    trust(&outer)?;
    let _held = lock(&outer)?;
    match outer.sub(NODE) {
        Ok(node) => {
            empty(&node)?;
            let removed = outer.remove(NODE, libc::AT_REMOVEDIR);
            removed.map_err(io_error("removing", node.path()))?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => empty(&outer)?,
        Err(error) => return Err(io_error("opening", dir)(error)),
    }
    std::fs::remove_dir(dir).map_err(io_error("removing", dir))
}

/// Lets NVML list a client of an MPS server on these GPUs, by their bits, and on no others from now on.
///
/// # Errors
/// There is no device in the directory, or it cannot be used.
pub fn set_mps(dir: &Path, gpus: u32) -> Result<(), Error> {
    let outer = Folder::open(dir).map_err(io_error("opening", dir))?;
    trust(&outer)?;
    let node = outer.sub(NODE).map_err(io_error("opening", &dir.join(NODE)))?;
    let (file, path) = (open_file(&node, STATE)?, node.path().join(STATE));
    check(&file, &path)?;
    let mapping = Mapping::new(&file).map_err(io_error("mapping", &path))?;
    mapping.header().mps.store(gpus, Ordering::Relaxed);
    Ok(())
}

/// Removes a device's files.
fn empty(node: &Folder) -> Result<(), Error> {
    let mut magic = [0; 8];
    let read = node.entry(STATE, libc::O_RDONLY).and_then(|mut file| file.read_exact(&mut magic));
    if read.is_ok() && u64::from_le_bytes(magic) != MAGIC {
        let reason = "is not the state of a simulated GPU, so nothing was removed".into();
        return Err(Error::Layout { path: node.path().join(STATE), reason });
    }
    let vram = (0..MAX_GPUS).map(|index| format!("vram{index}"));
    let others = [STATE, NEW_STATE, LOCKS, EXPORTS, CONTROL].map(String::from);
    for name in others.into_iter().chain(vram) {
        let removed = node.remove(&name, 0);
        removed.map_err(io_error("removing", &node.path().join(&name)))?;
    }
    Ok(())
}

/// Makes a device directory from `GPUSLICE_SIM` if it is not there, without attaching to it, so
/// that errors are texts: the driver and NVML can only return a code. Returns the directory of the
/// device's files, which a container gets.
///
/// # Errors
/// `GPUSLICE_SIM` or `GPUSLICE_SIM_FAULT` is malformed, or the directory cannot be used.
pub fn prepare(dir: &Path) -> Result<PathBuf, Error> {
    own_faults()?;
    let node = make(dir)?;
    check(&open_file(&node, STATE)?, &node.path().join(STATE))?;
    Ok(node.path().into())
}

/// The faults of `GPUSLICE_SIM_FAULT`, if it is set.
pub(crate) fn own_faults() -> Result<Option<Faults>, ConfigError> {
    match std::env::var("GPUSLICE_SIM_FAULT") {
        Ok(text) if !text.is_empty() => Faults::parse(&text).map(Some),
        _ => Ok(None),
    }
}

/// The device's files, made if they are not there.
fn make(dir: &Path) -> Result<Folder, Error> {
    match Folder::open(dir) {
        Ok(outer) => {
            trust(&outer)?;
            if let Some(node) = node_in(&outer)? {
                return Ok(node);
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(no_directory(dir, error)),
    }
    let text = std::env::var("GPUSLICE_SIM").unwrap_or_default();
    let config = Config::parse(&text)?;
    let (outer, _held) = hold(dir)?;
    match node_in(&outer)? {
        Some(node) => Ok(node),
        None => build(&outer, &config),
    }
}

/// The complete device in a directory, of the host or in a container.
fn node_in(outer: &Folder) -> Result<Option<Folder>, Error> {
    if outer.has(STATE) {
        let again = outer.again();
        return again.map(Some).map_err(io_error("opening", outer.path()));
    }
    match outer.sub(NODE) {
        Ok(node) => {
            trust(&node)?;
            Ok(node.has(STATE).then_some(node))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(no_directory(&outer.path().join(NODE), error)),
    }
}

/// Refuses a directory in which users other than its owner and root may have put something.
fn trust(folder: &Folder) -> Result<(), Error> {
    if folder.path() == Path::new(IN_CONTAINER) {
        return Ok(());
    }
    let facts = folder.facts().map_err(io_error("looking at", folder.path()))?;
    let (owner, mode) = (facts.uid(), facts.mode() & 0o7777);
    let reason = if owner != user() && owner != 0 {
        format!("belongs to user {owner}, not to user {}", user())
    } else if mode & 0o022 != 0 {
        format!("may be written by other users (mode {mode:o})")
    } else {
        return Ok(());
    };
    Err(refused(folder.path(), reason))
}

fn refused(path: &Path, reason: String) -> Error {
    let path = path.into();
    Error::Layout { path, reason }
}

/// The error for a failed `Folder::open`, with a text of its own for a path that is no directory.
fn no_directory(path: &Path, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENOTDIR | libc::ELOOP) => {
            refused(path, "is a link or a file, not a directory".into())
        }
        _ => io_error("opening", path)(error),
    }
}

/// Opens a device directory, making it from `GPUSLICE_SIM` if it is not there. Directories above it are not made: one
/// that was removed together with the device would come back with it.
pub(crate) fn open(dir: &Path) -> Result<Opened, Error> {
    let node = make(dir)?;
    let dir = node.path().to_owned();
    let file = open_file(&node, STATE)?;
    check(&file, &dir.join(STATE))?;
    let mapping = Mapping::new(&file).map_err(io_error("mapping", &dir.join(STATE)))?;
    let gpus = mapping.header().gpus as usize;
    let vram = (0..gpus).map(|index| open_file(&node, &format!("vram{index}")));
    let vram = vram.collect::<Result<_, _>>()?;
    let exports = dir.join(EXPORTS);
    Ok(Opened {
        mapping,
        exports: Exports::open(&exports).map_err(io_error("opening", &exports))?,
        locks: open_file(&node, LOCKS)?,
        vram,
        dir,
    })
}

/// Refuses a state file of another layout before it is mapped.
fn check(file: &File, path: &Path) -> Result<(), Error> {
    let refuse = |reason: String| Err(Error::Layout { path: path.into(), reason });
    let mut start = [0; 24];
    if (&*file).read_exact(&mut start).is_err() {
        return refuse("is too short to be the state of a simulated GPU".into());
    }
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&start[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let (magic, version, gpus, bytes) = (word(0), word(8) as u32, word(8) >> 32, word(16));
    let length = file.metadata().map_err(io_error("looking at", path))?.len();
    if magic != MAGIC {
        return refuse("is not the state of a simulated GPU".into());
    }
    if version != VERSION {
        return refuse(format!("has layout version {version}, this program speaks {VERSION}"));
    }
    if bytes != FILE_BYTES as u64 || length != bytes {
        return refuse(format!("has {length} bytes, expected {FILE_BYTES}"));
    }
    if gpus == 0 || gpus > crate::limits::MAX_GPUS as u64 {
        return refuse(format!("names {gpus} GPUs"));
    }
    Ok(())
}

fn io_error(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::Io { doing, path: path.into(), source }
}

fn open_file(node: &Folder, name: &str) -> Result<File, Error> {
    let opened = node.entry(name, libc::O_RDWR);
    opened.map_err(io_error("opening", &node.path().join(name)))
}

/// Permissions of the device's directory and of its files. Containers' processes have users of their own,
/// and root's device is for them, as a real device's node is; an ordinary user's is not.
fn permissions() -> (Permissions, Permissions) {
    let (dir, file) = if user() == 0 { (0o711, 0o666) } else { (PRIVATE, 0o600) };
    (Permissions::from_mode(dir), Permissions::from_mode(file))
}

fn new_file(node: &Folder, name: &str, bytes: u64) -> Result<File, Error> {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
    let made = node.entry(name, flags).and_then(|file| {
        file.set_permissions(permissions().1)?;
        file.set_len(bytes)?;
        Ok(file)
    });
    made.map_err(io_error("making", &node.path().join(name)))
}

/// Makes the directory if need be, and keeps others from making the device in it.
fn hold(dir: &Path) -> Result<(Folder, File), Error> {
    Folder::make(dir).map_err(io_error("making", dir))?;
    let outer = Folder::open(dir).map_err(|error| no_directory(dir, error))?;
    trust(&outer)?;
    let facts = outer.facts().map_err(io_error("looking at", dir))?;
    let (owner, mode) = (facts.uid(), facts.mode() & 0o7777);
    if owner != user() {
        let reason = format!("belongs to user {owner}, not to user {}", user());
        return Err(refused(dir, reason));
    }
    if mode & 0o077 != 0 {
        let reason = format!("is open to other users (mode {mode:o}, expected {PRIVATE:o})");
        return Err(refused(dir, reason));
    }
    let held = lock(&outer)?;
    Ok((outer, held))
}

fn lock(outer: &Folder) -> Result<File, Error> {
    let held = outer.entry(".", libc::O_RDONLY | libc::O_DIRECTORY);
    let held = held.map_err(io_error("opening", outer.path()))?;
    held.lock().map_err(io_error("locking", outer.path()))?;
    Ok(held)
}

/// Makes the device's files; the caller holds the directory.
fn build(outer: &Folder, config: &Config) -> Result<Folder, Error> {
    let path = outer.path().join(NODE);
    let node = outer.make_sub(NODE).map_err(io_error("making", &path))?;
    trust(&node)?;
    node.entry(".", libc::O_RDONLY | libc::O_DIRECTORY)
        .and_then(|dir| dir.set_permissions(permissions().0))
        .map_err(io_error("making", &path))?;
    for (index, device) in config.devices.iter().enumerate() {
        new_file(&node, &format!("vram{index}"), device.memory_bytes)?;
    }
    new_file(&node, LOCKS, 0)?;
    new_file(&node, EXPORTS, 0)?;
    new_file(&node, CONTROL, 0)?;
    let file = new_file(&node, NEW_STATE, FILE_BYTES as u64)?;
    let mapped = Mapping::new(&file);
    let mut mapping = mapped.map_err(io_error("mapping", &path.join(NEW_STATE)))?;
    fill(mapping.header_of_new_file(), config);
    mapping.state_of_new_file().initialise(config);
    let named = node.rename(NEW_STATE, STATE);
    named.map_err(io_error("naming", &path.join(NEW_STATE)))?;
    Ok(node)
}

fn fill(header: &mut Header, config: &Config) {
    header.version = VERSION;
    header.gpus = config.devices.len() as u32;
    header.file_bytes = FILE_BYTES as u64;
    header.context_pages = config.context_bytes.div_ceil(PAGE_BYTES) as u32;
    header.first_context_pages = config.first_context_bytes.div_ceil(PAGE_BYTES) as u32;
    header.module_pages = config.module_bytes.div_ceil(PAGE_BYTES) as u32;
    header.limits = config.limits as u32;
    header.controls = config.controls as u32;
    header.driver = [config.driver.0, config.driver.1];
    header.compute_capability = [config.compute_capability.0, config.compute_capability.1];
    header.multiprocessors = config.multiprocessors;
    header.properties = config.properties;
    header.mps = AtomicU32::new(config.properties.mps);
    for (index, device) in config.devices.iter().enumerate() {
        let mut name = [0; NAME_BYTES];
        name[..device.name.len()].copy_from_slice(device.name.as_bytes());
        header.devices[index] = Device {
            uuid: uuid(index, device, config.strict),
            pages: (device.memory_bytes / PAGE_BYTES) as u32,
            name_len: device.name.len() as u32,
            name,
        };
    }
    header.magic = MAGIC;
}

/// How the UUID of each simulated GPU begins, and of no other: what tells it from a real one wherever a GPU
/// has its name only. `GpuUuid::is_simulated` of the wire knows it, too.
const UUID_BEGINS: [u8; 6] = *b"gpusim";

/// The same device gets the same UUID on every machine: FNV-1a of what it is, in the form of version 8, whose
/// bits are a maker's own. The bit after the version says whether the profile is strict: `GpuUuid::profile`.
fn uuid(index: usize, device: &DeviceConfig, strict: bool) -> [u8; 16] {
    let text = format!("gpuslice/{index}/{}/{}", device.name, device.memory_bytes);
    let hash = |seed: u64| {
        text.bytes()
            .fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
    };
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&hash(0xcbf2_9ce4_8422_2325).to_be_bytes());
    uuid[8..].copy_from_slice(&hash(0x8422_2325_cbf2_9ce4).to_be_bytes());
    uuid[..6].copy_from_slice(&UUID_BEGINS);
    uuid[6] = uuid[6] & 0x0e | 0x80 | u8::from(strict);
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}
