//! Which GPUs a process sees, and in which order: the variable `CUDA_VISIBLE_DEVICES`.
//!
//! A list of indices or of UUIDs, a UUID given in full or as an unambiguous beginning. Not set
//! means all; empty means none; the first entry that names nothing, or names a GPU again, ends
//! the list, as in NVIDIA's documentation.

use gpuslice_sim_device::GpuInfo;

/// The machine's indices of the GPUs to show, by ordinal.
pub fn choose(text: Option<&str>, gpus: &[GpuInfo]) -> Vec<usize> {
    let Some(text) = text else {
        return (0..gpus.len()).collect();
    };
    let mut shown = Vec::new();
    for entry in text.split(',') {
        match find(entry.trim(), gpus) {
            Some(index) if !shown.contains(&index) => shown.push(index),
            _ => break,
        }
    }
    shown
}

fn find(entry: &str, gpus: &[GpuInfo]) -> Option<usize> {
    if entry.to_ascii_uppercase().starts_with("GPU-") {
        let wanted = entry[4..].to_ascii_lowercase();
        let mut fitting =
            (0..gpus.len()).filter(|&index| gpus[index].uuid_text()[4..].starts_with(&wanted));
        let first = fitting.next()?;
        return fitting.next().is_none().then_some(first);
    }
    entry.parse().ok().filter(|&index| index < gpus.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus() -> Vec<GpuInfo> {
        let gpu = |index: usize, first: u8| GpuInfo {
            index,
            uuid: [first; 16],
            name: "test".into(),
            total_bytes: 1 << 30,
            pci: (0, 0, 0),
            compute_capability: (9, 0),
            multiprocessors: 1,
        };
        vec![gpu(0, 0xa1), gpu(1, 0xa2), gpu(2, 0xb1)]
    }

    #[test]
    fn the_list_is_read_up_to_the_first_mistake() {
        let check = |text: &str, expect: &[usize]| {
            assert_eq!(choose(Some(text), &gpus()), expect, "{text}");
        };
        assert_eq!(choose(None, &gpus()), [0, 1, 2]);
        check("", &[]);
        check("2,0", &[2, 0]);
        check(" 1 , 2", &[1, 2]);
        check("0,-1,2", &[0]);
        check("0,7,2", &[0]);
        check("1,1,2", &[1]);
        check("GPU-b1,0", &[2, 0]);
        check("gpu-A2a2a2a2-a2a2", &[1]);
        check("GPU-a", &[]);
        check("MIG-1", &[]);
        check("NoDevFiles", &[]);
    }
}
