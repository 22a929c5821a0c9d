//! Copies of rows and of planes of rows.

use super::forms::{flat, peer};
use super::{Until, submit};
use crate::context;
use crate::entry::{In, Outcome};
use gpuslice_nvabi::types::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUstream};

pub fn cuMemcpy2D_v2(copy: In<CUDA_MEMCPY2D>) -> Outcome {
    submit(flat(&copy.get()?), Until::Done)
}
pub use cuMemcpy2D_v2 as cuMemcpy2D_v2_ptds;
pub use cuMemcpy2D_v2 as cuMemcpy2DUnaligned_v2;
pub use cuMemcpy2D_v2 as cuMemcpy2DUnaligned_v2_ptds;

pub fn cuMemcpy2DAsync_v2(copy: In<CUDA_MEMCPY2D>, stream: CUstream) -> Outcome {
    submit(flat(&copy.get()?), Until::Queued(stream))
}
pub use cuMemcpy2DAsync_v2 as cuMemcpy2DAsync_v2_ptsz;

pub fn cuMemcpy3D_v2(copy: In<CUDA_MEMCPY3D>) -> Outcome {
    submit(copy.get()?, Until::Done)
}
pub use cuMemcpy3D_v2 as cuMemcpy3D_v2_ptds;

pub fn cuMemcpy3DAsync_v2(copy: In<CUDA_MEMCPY3D>, stream: CUstream) -> Outcome {
    submit(copy.get()?, Until::Queued(stream))
}
pub use cuMemcpy3DAsync_v2 as cuMemcpy3DAsync_v2_ptsz;

fn contexts_live(copy: &CUDA_MEMCPY3D_PEER) -> Outcome {
    context::find(copy.src_context)?;
    context::find(copy.dst_context).map(drop)
}

pub fn cuMemcpy3DPeer(copy: In<CUDA_MEMCPY3D_PEER>) -> Outcome {
    let copy = copy.get()?;
    contexts_live(&copy)?;
    submit(peer(&copy), Until::Done)
}
pub use cuMemcpy3DPeer as cuMemcpy3DPeer_ptds;

pub fn cuMemcpy3DPeerAsync(copy: In<CUDA_MEMCPY3D_PEER>, stream: CUstream) -> Outcome {
    let copy = copy.get()?;
    contexts_live(&copy)?;
    submit(peer(&copy), Until::Queued(stream))
}
pub use cuMemcpy3DPeerAsync as cuMemcpy3DPeerAsync_ptsz;
