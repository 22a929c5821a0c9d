//! The device directory: where it is, and how it comes and goes.
//!
//! It is made by whoever opens it first, and must never be seen half-made. The maker holds a
//! `flock` on the directory itself, writes all other files, and gives `state` its name last: a
//! directory with a `state` is complete.

use crate::config::{Config, DeviceConfig};
use crate::error::{ConfigError, Error};
use crate::exports::Exports;
use crate::faults::Faults;
use crate::layout::{Device, FILE_BYTES, Header, MAGIC, VERSION};
use crate::limits::{NAME_BYTES, PAGE_BYTES};
use crate::mapping::Mapping;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const STATE: &str = "state";
const NEW_STATE: &str = "state.new";
const LOCKS: &str = "locks";
const EXPORTS: &str = "exports";
/// Its open files stand for those of the driver's control node.
const CONTROL: &str = "control";

/// The files of a living device.
pub(crate) struct Opened {
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
    let node = Path::new("/dev/gpuslice-sim");
    if node.exists() {
        return node.into();
    }
    format!("/dev/shm/gpuslice-sim-{}", user()).into()
}

fn user() -> u32 {
    fs::metadata("/proc/self")
        .map(|facts| facts.uid())
        .unwrap_or(0)
}

/// The file whose openings stand for those of the driver's control node.
pub fn control_file(dir: &Path) -> PathBuf {
    dir.join(CONTROL)
}

/// Makes a device directory; one that exists already is an error.
pub fn create(dir: &Path, config: &Config) -> Result<(), Error> {
    let _held = hold(dir)?;
    if dir.join(STATE).exists() {
        let source = io::Error::from(ErrorKind::AlreadyExists);
        return Err(Error::Io {
            doing: "making",
            path: dir.into(),
            source,
        });
    }
    build(dir, config)
}

/// Removes a device directory. Processes that use it go on with what they have mapped.
pub fn destroy(dir: &Path) -> Result<(), Error> {
    let held = hold_existing(dir)?;
    let state = dir.join(STATE);
    let mut magic = [0; 8];
    let read = File::open(&state).and_then(|mut file| file.read_exact(&mut magic));
    if read.is_ok() && u64::from_le_bytes(magic) != MAGIC {
        let reason = "is not the state of a simulated GPU, so nothing was removed".into();
        return Err(Error::Layout {
            path: state,
            reason,
        });
    }
    let vram = (0..crate::limits::MAX_GPUS).map(|index| format!("vram{index}"));
    for name in [STATE, NEW_STATE, LOCKS, EXPORTS, CONTROL]
        .map(String::from)
        .into_iter()
        .chain(vram)
    {
        let path = dir.join(name);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                return Err(Error::Io {
                    doing: "removing",
                    path,
                    source,
                });
            }
            _ => {}
        }
    }
    fs::remove_dir(dir).map_err(|source| Error::Io {
        doing: "removing",
        path: dir.into(),
        source,
    })?;
    drop(held);
    Ok(())
}

/// Makes a device directory from `GPUSLICE_SIM` if it is not there, without attaching to it, so
/// that what is wrong is said in words: the driver and NVML can only answer a code.
///
/// # Errors
/// `GPUSLICE_SIM` or `GPUSLICE_SIM_FAULT` is malformed, or the directory cannot be used.
pub fn prepare(dir: &Path) -> Result<(), Error> {
    own_faults()?;
    make(dir)?;
    let state = dir.join(STATE);
    check(&open_file(&state)?, &state)
}

/// The faults of `GPUSLICE_SIM_FAULT`, if it is set.
pub(crate) fn own_faults() -> Result<Option<Faults>, ConfigError> {
    match std::env::var("GPUSLICE_SIM_FAULT") {
        Ok(text) if !text.is_empty() => Faults::parse(&text).map(Some),
        _ => Ok(None),
    }
}

fn make(dir: &Path) -> Result<(), Error> {
    if dir.join(STATE).exists() {
        return Ok(());
    }
    let text = std::env::var("GPUSLICE_SIM").unwrap_or_default();
    let config = Config::parse(&text)?;
    let _held = hold(dir)?;
    if dir.join(STATE).exists() {
        return Ok(());
    }
    build(dir, &config)
}

/// Opens a device directory, making it from `GPUSLICE_SIM` if it is not there.
pub(crate) fn open(dir: &Path) -> Result<Opened, Error> {
    make(dir)?;
    let facts = fs::metadata(dir).map_err(io_error("looking at", dir))?;
    if dir.starts_with("/dev/shm") && facts.uid() != user() && facts.uid() != 0 {
        let reason = "belongs to another user".into();
        return Err(Error::Layout {
            path: dir.into(),
            reason,
        });
    }
    let state = dir.join(STATE);
    let file = open_file(&state)?;
    check(&file, &state)?;
    let mapping = Mapping::new(&file).map_err(io_error("mapping", &state))?;
    let gpus = mapping.header().gpus as usize;
    let vram = (0..gpus).map(|index| open_file(&dir.join(format!("vram{index}"))));
    let vram = vram.collect::<Result<_, _>>()?;
    let exports = dir.join(EXPORTS);
    Ok(Opened {
        mapping,
        exports: Exports::open(&exports).map_err(io_error("opening", &exports))?,
        locks: open_file(&dir.join(LOCKS))?,
        vram,
    })
}

/// Refuses a state file of another layout before it is mapped.
fn check(file: &File, path: &Path) -> Result<(), Error> {
    let refuse = |reason: String| {
        Err(Error::Layout {
            path: path.into(),
            reason,
        })
    };
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
        return refuse(format!(
            "has layout version {version}, this program speaks {VERSION}"
        ));
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
    move |source| Error::Io {
        doing,
        path: path.into(),
        source,
    }
}

fn open_file(path: &Path) -> Result<File, Error> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(io_error("opening", path))
}

/// Everybody who may enter the directory may use the device, as with a real device node.
fn new_file(path: &Path, bytes: u64) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o666);
    let file = options.open(path).map_err(io_error("making", path))?;
    file.set_permissions(Permissions::from_mode(0o666))
        .map_err(io_error("making", path))?;
    file.set_len(bytes).map_err(io_error("making", path))?;
    Ok(file)
}

fn hold(dir: &Path) -> Result<File, Error> {
    fs::create_dir_all(dir).map_err(io_error("making", dir))?;
    hold_existing(dir)
}

fn hold_existing(dir: &Path) -> Result<File, Error> {
    let held = File::open(dir).map_err(io_error("opening", dir))?;
    held.lock().map_err(io_error("locking", dir))?;
    Ok(held)
}

fn build(dir: &Path, config: &Config) -> Result<(), Error> {
    for (index, device) in config.devices.iter().enumerate() {
        new_file(&dir.join(format!("vram{index}")), device.memory_bytes)?;
    }
    new_file(&dir.join(LOCKS), 0)?;
    new_file(&dir.join(EXPORTS), 0)?;
    new_file(&dir.join(CONTROL), 0)?;
    let path = dir.join(NEW_STATE);
    let file = new_file(&path, FILE_BYTES as u64)?;
    let mut mapping = Mapping::new(&file).map_err(io_error("mapping", &path))?;
    fill(mapping.header_of_new_file(), config);
    mapping.state_of_new_file().initialise(config);
    fs::rename(&path, dir.join(STATE)).map_err(io_error("naming", &path))
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
    for (index, device) in config.devices.iter().enumerate() {
        let mut name = [0; NAME_BYTES];
        name[..device.name.len()].copy_from_slice(device.name.as_bytes());
        header.devices[index] = Device {
            uuid: uuid(index, device),
            pages: (device.memory_bytes / PAGE_BYTES) as u32,
            name_len: device.name.len() as u32,
            name,
        };
    }
    header.magic = MAGIC;
}

/// The same device gets the same UUID on every machine: FNV-1a of what it is, in version 4's form.
fn uuid(index: usize, device: &DeviceConfig) -> [u8; 16] {
    let text = format!("gpuslice/{index}/{}/{}", device.name, device.memory_bytes);
    let hash = |seed: u64| {
        text.bytes().fold(seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    };
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&hash(0xcbf2_9ce4_8422_2325).to_be_bytes());
    uuid[8..].copy_from_slice(&hash(0x8422_2325_cbf2_9ce4).to_be_bytes());
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}
