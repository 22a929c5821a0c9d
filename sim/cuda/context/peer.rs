//! Access of one GPU to the memory of another. All memory of the simulated machine is reachable from
//! every GPU, so this module only keeps the state that programs can observe.

use super::{Context, current, find};
use crate::driver::process;
use crate::entry::{Out, Outcome, refuse_if};
use gpuslice_nvabi::types::{CUcontext, CUdevice, CUdevice_P2PAttribute, CUresult};
use std::sync::{Mutex, PoisonError};

/// Which contexts a context has access to, by their ids.
#[derive(Default)]
pub struct Peers(Mutex<Vec<u64>>);

impl Peers {
    fn enable(&self, peer: &Context) -> Result<(), CUresult> {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.contains(&peer.serial) {
            return Err(CUresult::ERROR_PEER_ACCESS_ALREADY_ENABLED);
        }
        peers.push(peer.serial);
        Ok(())
    }

    fn disable(&self, peer: &Context) -> Result<(), CUresult> {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = peers.iter().position(|&serial| serial == peer.serial);
        peers.swap_remove(at.ok_or(CUresult::ERROR_PEER_ACCESS_NOT_ENABLED)?);
        Ok(())
    }
}

pub fn cuDeviceCanAccessPeer(can: Out<i32>, dev: CUdevice, peer: CUdevice) -> Outcome {
    can.require()?;
    let process = process()?;
    process.gpu(dev)?;
    process.gpu(peer)?;
    can.set(i32::from(dev != peer))
}

pub fn cuDeviceGetP2PAttribute(
    value: Out<i32>,
    attrib: CUdevice_P2PAttribute,
    src: CUdevice,
    dst: CUdevice,
) -> Outcome {
    value.require()?;
    let process = process()?;
    process.gpu(src)?;
    process.gpu(dst)?;
    if src == dst {
        return Err(CUresult::ERROR_INVALID_DEVICE);
    }
    // Performance rank 0 (all links are alike); access, atomics and arrays are supported.
    match attrib {
        1 => value.set(0),
        2..=4 => value.set(1),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub fn cuCtxEnablePeerAccess(peer: CUcontext, flags: u32) -> Outcome {
    let current = current()?;
    let peer = find(peer)?;
    refuse_if(flags != 0)?;
    if peer.device == current.device {
        return Err(CUresult::ERROR_INVALID_DEVICE);
    }
    current.peers.enable(peer)
}

pub fn cuCtxDisablePeerAccess(peer: CUcontext) -> Outcome {
    let current = current()?;
    current.peers.disable(find(peer)?)
}
