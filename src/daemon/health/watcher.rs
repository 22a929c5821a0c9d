//! The child's program (`--watch-nvml`): waits for NVML's events and writes a line for each.
//!
//! ```text
//! GPU-… xid 79       a critical error of the driver
//! GPU-… ecc          an uncorrectable memory error
//! GPU-… lost         the driver does not find the GPU any more
//! GPU-… found        it finds it, at the start or again
//! ```
//! It ends with its parent. A call on a GPU that fell off the bus may never return; the event that tells of it comes
//! before.

use crate::nvml::Nvml;
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
            watch(nvml.wrapper())?;
        }
        std::thread::sleep(AGAIN);
        // A parent that is gone reads nothing.
        say("")?;
    }
}

/// Watches until NVML fails.
fn watch(nvml: &nvml_wrapper::Nvml) -> io::Result<()> {
    let Some((events, gpus)) = registered(nvml) else {
        return Ok(());
    };
    // An earlier watch may have told that one of them was lost.
    for gpu in &gpus {
        say(&format!("{gpu} found"))?;
    }
    let mut lost: BTreeSet<&str> = BTreeSet::new();
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
        for gpu in &gpus {
            let there = nvml.device_by_uuid(gpu.as_str()).and_then(|it| it.memory_info()).is_ok();
            match (there, lost.contains(gpu.as_str())) {
                (false, false) => {
                    lost.insert(gpu);
                    say(&format!("{gpu} lost"))?;
                }
                (true, true) => {
                    lost.remove(gpu.as_str());
                    say(&format!("{gpu} found"))?;
                }
                _ => {}
            }
        }
    }
}

/// A set of events of all GPUs, and the GPUs.
fn registered(nvml: &nvml_wrapper::Nvml) -> Option<(EventSet<'_>, Vec<String>)> {
    let wanted = EventTypes::CRITICAL_XID_ERROR | EventTypes::DOUBLE_BIT_ECC_ERROR;
    let mut events = nvml.create_event_set().ok()?;
    let mut gpus = Vec::new();
    for index in 0..nvml.device_count().ok()? {
        let device = nvml.device_by_index(index).ok()?;
        gpus.push(device.uuid().ok()?);
        let supported = device.supported_event_types().unwrap_or(EventTypes::empty()) & wanted;
        if !supported.is_empty() {
            events = device.register_events(supported, events).ok()?;
        }
    }
    Some((events, gpus))
}

/// Writes a line.
fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
