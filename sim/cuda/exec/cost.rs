//! Durations of work on the simulated GPU.
//!
//! The constants are round and belong to a card like the H200. They are documented and fixed, so
//! that a test can compute its expected durations. A kernel named `spin` takes exactly the time of
//! its first argument; of any other kernel only its grid is known, so its blocks are counted in waves.

#![forbid(unsafe_code)]

/// Nanoseconds of simulated time.
pub type Nanos = u64;

/// What any kernel costs, however small.
pub const LAUNCH_NS: Nanos = 2_000;
/// Blocks the device holds at once.
pub const WAVE_BLOCKS: u64 = gpuslice_sim_device::limits::WAVE_BLOCKS as u64;
/// One wave of blocks, whatever they do.
pub const WAVE_NS: Nanos = 10_000;
/// What any copy or fill costs, however small.
pub const COPY_NS: Nanos = 1_500;
/// Host to device and back, bytes per microsecond (PCIe 5 x16, about 50 GB/s).
pub const BUS_BYTES_PER_US: u64 = gpuslice_sim_device::limits::LINK_BYTES_PER_US;
/// Within the device, bytes per microsecond (about 2 TB/s, read and written).
pub const DEVICE_BYTES_PER_US: u64 = 2_000_000;

/// Of a kernel with this many blocks, by its grid alone.
pub fn kernel(blocks: u64) -> Nanos {
    LAUNCH_NS + blocks.div_ceil(WAVE_BLOCKS).saturating_mul(WAVE_NS)
}

/// Of moving `bytes`, over the bus or within the device.
pub fn copy(bytes: u64, over_bus: bool) -> Nanos {
    let per_us = if over_bus { BUS_BYTES_PER_US } else { DEVICE_BYTES_PER_US };
    COPY_NS + bytes.saturating_mul(1_000) / per_us
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_and_bandwidth() {
        assert_eq!(kernel(1), 12_000);
        assert_eq!(kernel(WAVE_BLOCKS), 12_000);
        assert_eq!(kernel(WAVE_BLOCKS + 1), 22_000);
        assert_eq!(copy(0, true), 1_500);
        assert_eq!(copy(50_000_000, true), 1_001_500);
        assert_eq!(copy(2_000_000, false), 2_500);
    }
}
