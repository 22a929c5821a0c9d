//! The child's program (`--watch-nvml`): waits for NVML's events and writes a line for each, and once a second which
//! GPUs answer.
//!
//! ```text
//! GPU-… xid 79       a critical error of the driver
//! GPU-… ecc          an uncorrectable memory error
//! works GPU-… GPU-…  all GPUs that answer now
//! ```
//! It ends with its parent. A call on a GPU that fell off the bus may never return; the event that tells of it comes
//! before. The parent then reads nothing more, and no GPU recovers that is not seen to answer.

use crate::nvml::Nvml;
use gpuslice_wire::ids::GpuUuid;
use nvml_wrapper::EventSet;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// How long one wait for an event takes at most, ms; after each, the GPUs are looked for.
const WAIT_MS: u32 = 1_000;
/// Pause before NVML is opened again.
const AGAIN: Duration = Duration::from_secs(5);

/// Writes events until the parent has ended.
///
/// # Errors
/// The parent has ended.
pub fn serve(library: &Path) -> io::Result<()> {
    loop {
        if let Ok(nvml) = Nvml::open(library) {
            watch(&nvml)?;
        }
        std::thread::sleep(AGAIN);
        lives()?; // A parent that is gone reads nothing.
    }
}

/// Watches until NVML fails, or a GPU opens that did not.
fn watch(library: &Nvml) -> io::Result<()> {
    let nvml = library.wrapper();
    let Some(Watched { events, gpus, closed }) = registered(nvml)? else {
        return Ok(());
    };
    tell_which_work(library, &gpus)?;
    loop {
        match events.wait(WAIT_MS) {
            Ok(event) => {
                let Ok(gpu) = event.device.uuid() else {
                    continue;
                };
                match event.event_data {
                    Some(XidError::Value(xid)) => say(&format!("{gpu} xid {xid}"))?,
                    Some(XidError::Unknown) => say(&format!("{gpu} xid 0"))?,
                    None if event.event_type.contains(EventTypes::DOUBLE_BIT_ECC_ERROR) => {
                        say(&format!("{gpu} ecc"))?;
                    }
                    None => {}
                }
            }
            Err(NvmlError::Timeout) => {}
            // Each wait may fail at once from then on.
            Err(NvmlError::GpuLost) => std::thread::sleep(Duration::from_millis(WAIT_MS.into())),
            Err(_) => return Ok(()),
        }
        for index in &closed {
            let opens = opened(nvml, *index).is_ok();
            lives()?;
            if opens {
                return Ok(()); // to register for it, too
            }
        }
        tell_which_work(library, &gpus)?;
    }
}

/// Writes which of the GPUs answer.
fn tell_which_work(nvml: &Nvml, gpus: &[String]) -> io::Result<()> {
    let mut line = "works".to_owned();
    for gpu in gpus {
        let uuid = gpu.parse::<GpuUuid>().ok();
        if uuid.is_some_and(|uuid| nvml.of(uuid).is_ok_and(|device| device.total().is_ok())) {
            line.push(' ');
            line.push_str(gpu);
        }
        lives()?;
    }
    say(&line)
}

/// Tells that this process does not hang in a call. A GPU that is initialised takes seconds for the first one, and a
/// failing one more; the parent gives up a child that tells nothing meanwhile.
fn lives() -> io::Result<()> {
    say("")
}

/// What is watched.
struct Watched<'a> {
    /// Events of the GPUs that have any.
    events: EventSet<'a>,
    /// UUIDs.
    gpus: Vec<String>,
    /// The NVML indices of GPUs that do not open.
    closed: Vec<u32>,
}

/// A GPU by NVML's index, and its UUID.
fn opened(
    nvml: &nvml_wrapper::Nvml,
    index: u32,
) -> Result<(nvml_wrapper::Device<'_>, String), NvmlError> {
    let device = nvml.device_by_index(index)?;
    let uuid = device.uuid()?;
    Ok((device, uuid))
}

/// Registers for the events of all GPUs that open. One that does not keeps none of the others from being watched.
fn registered(nvml: &nvml_wrapper::Nvml) -> io::Result<Option<Watched<'_>>> {
    let mut without_events = BTreeSet::new();
    let count = nvml.device_count().unwrap_or(0);
    // A refusal ends the set, so that another one is made without that GPU.
    for _ in 0..=count {
        let watched = register(nvml, count, &mut without_events)?;
        if watched.is_some() {
            return Ok(watched);
        }
    }
    Ok(None)
}

fn register<'a>(
    nvml: &'a nvml_wrapper::Nvml,
    count: u32,
    without_events: &mut BTreeSet<u32>,
) -> io::Result<Option<Watched<'a>>> {
    let wanted = EventTypes::CRITICAL_XID_ERROR | EventTypes::DOUBLE_BIT_ECC_ERROR;
    let Ok(mut events) = nvml.create_event_set() else {
        return Ok(None);
    };
    let (mut gpus, mut closed) = (Vec::new(), Vec::new());
    for index in 0..count {
        let found = opened(nvml, index);
        lives()?;
        let Ok((device, uuid)) = found else {
            closed.push(index);
            continue;
        };
        gpus.push(uuid);
        let supported = device.supported_event_types().unwrap_or(EventTypes::empty()) & wanted;
        if supported.is_empty() || without_events.contains(&index) {
            continue;
        }
        let Ok(registered) = device.register_events(supported, events) else {
            without_events.insert(index);
            return Ok(None);
        };
        events = registered;
    }
    Ok(Some(Watched { events, gpus, closed }))
}

/// Writes a line.
fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
