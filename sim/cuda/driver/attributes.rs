//! The attributes of a device: the answers of `cuDeviceGetAttribute`.
//!
//! The numbers are those of an H100-like card (compute capability 9.0), as its documentation
//! gives them; features the simulated driver does not serve are answered with 0, so that programs
//! choose another way. Ordinals are those of `CUdevice_attribute` in cuda.h.

use gpuslice_nvabi::types::CUdevprop;
use gpuslice_sim_device::GpuInfo;

/// Attributes 1 to 161 in order; those computed from the device are 0 here.
#[rustfmt::skip]
const VALUES: [i32; 161] = [
    // 1: threads per block, block x y z, grid x y z, shared memory per block, constant memory
    1024, 1024, 1024, 64, 0x7fff_ffff, 65535, 65535, 49152, 65536,
    // 10: warp, pitch, registers per block, clock kHz, texture alignment, overlap, SMs
    32, 0x7fff_ffff, 65536, 1_980_000, 512, 1, 0,
    // 17: exec timeout, integrated, maps host memory, compute mode, texture 1D, 2D x y, 3D x y z
    0, 0, 1, 0, 131_072, 131_072, 65536, 16384, 16384, 16384,
    // 27: layered 2D x y layers, surface alignment, concurrent kernels, ECC, PCI bus, device, TCC
    32768, 32768, 2048, 512, 1, 1, 0, 0, 0,
    // 36: memory clock kHz, bus width, L2 bytes, threads per SM, copy engines, unified addressing
    2_619_000, 5120, 50 << 20, 2048, 3, 1,
    // 42: layered 1D, layers, gather, x, y, alternate 3D x y z, PCI domain, pitch alignment
    32768, 2048, 1, 32768, 32768, 8192, 8192, 32768, 0, 32,
    // 52: cube map, layered, layers, surfaces 1D, 2D, 3D, layered and cube maps
    32768, 32768, 2046, 32768, 131_072, 65536, 16384, 16384, 16384,
    // 61
    32768, 2048, 32768, 32768, 2048, 32768, 32768, 2046,
    // 69: linear textures 1D, 2D x y pitch, mipmapped x y, capability major minor, mipmapped 1D
    268_435_456, 131_072, 65000, 2_097_120, 32768, 32768, 0, 0, 32768,
    // 78: priorities, L1 caches, shared memory and registers per SM, managed, board, group
    1, 1, 1, 233_472, 65536, 1, 0, 0,
    // 86: host atomics, single:double, pageable access, concurrent managed, preemption, host ptr
    0, 2, 0, 1, 1, 1,
    // 92: stream memory operations (first form: none), cooperative, multi-device, opt-in shared
    0, 0, 0, 1, 0, 232_448,
    // 98: flush remote writes, host register, page tables, direct managed, VMM, fd, win32, kmt
    1, 1, 0, 0, 1, 1, 0, 0,
    // 106: blocks per SM, compression, persisting L2, access window, RDMA VMM, reserved shared
    32, 0, 32 << 20, 128 << 20, 0, 1024,
    // 112: sparse arrays, read-only register, timeline semaphores, pools, RDMA, options, ordering
    1, 1, 0, 1, 0, 0, 0,
    // 119: pool handle types (fd), clusters, deferred arrays, 64-bit waits, NOR, dma-buf, IPC
    1, 1, 0, 1, 1, 0, 1,
    // 126: sync domains, tensor maps, fabric, function pointers, NUMA config, id, multicast, MPS
    4, 1, 0, 1, 0, -1, 0, 0,
    // 134: host NUMA id, D3D12, decompression mask, length, Vulkan, PCI ids, host memory features
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    // 147: newer than what is served
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// The value of an attribute; `None` for one that does not exist.
pub fn value(gpu: &GpuInfo, attribute: u32) -> Option<i32> {
    let (domain, bus, device) = gpu.pci;
    let (major, minor) = gpu.compute_capability;
    match attribute {
        16 => Some(gpu.multiprocessors as i32),
        33 => Some(i32::from(bus)),
        34 => Some(i32::from(device)),
        50 => Some(domain as i32),
        75 => Some(major as i32),
        76 => Some(minor as i32),
        85 => Some(gpu.index as i32),
        other => VALUES.get((other as usize).checked_sub(1)?).copied(),
    }
}

/// The few of them the oldest form of the question gives.
pub fn properties(gpu: &GpuInfo) -> CUdevprop {
    let get = |attribute| value(gpu, attribute).unwrap_or(0);
    CUdevprop {
        max_threads_per_block: get(1),
        max_threads_dim: [get(2), get(3), get(4)],
        max_grid_size: [get(5), get(6), get(7)],
        shared_mem_per_block: get(8),
        total_constant_memory: get(9),
        simd_width: get(10),
        mem_pitch: get(11),
        regs_per_block: get(12),
        clock_rate: get(13),
        texture_align: get(14),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_hit_their_values() {
        let gpu = GpuInfo {
            index: 0,
            uuid: [0; 16],
            name: "test".into(),
            total_bytes: 1 << 30,
            pci: (0, 0x11, 0),
            compute_capability: (8, 6),
            multiprocessors: 84,
        };
        let known = [
            (1, 1024),
            (8, 49152),
            (10, 32),
            (16, 84),
            (33, 0x11),
            (37, 5120),
            (39, 2048),
            (41, 1),
            (51, 32),
            (75, 8),
            (76, 6),
            (78, 1),
            (83, 1),
            (95, 1),
            (97, 232_448),
            (99, 1),
            (102, 1),
            (103, 1),
            (106, 32),
            (115, 1),
            (119, 1),
            (122, 1),
            (125, 1),
            (131, -1),
        ];
        for (attribute, expect) in known {
            assert_eq!(value(&gpu, attribute), Some(expect), "attribute {attribute}");
        }
        assert_eq!((value(&gpu, 0), value(&gpu, 162)), (None, None));
    }
}
