//! Copies, fills and page migrations: work for the GPU, gated like a launch.
//!
//! There are a hundred of these functions, and for each of them the gate needs only the number of bytes
//! and the kind of transfer. Both follow from the names of the function and of its arguments, so the hooks
//! are generated from the table's own rows: [`Sketch::of`] reads the function's name, [`Property::apply`] each
//! argument's.
//!
//! # Kinds
//! A copy between host and device goes over the bus and does not occupy the multiprocessors; one within the
//! device does. If the name does not determine the kind, the memory types in the structure do; for an
//! address alone the driver is asked. A copy of unknown kind counts as one within the device.

use super::launch::launches;
use crate::launch::{DefaultStream, TransferKind, Work};
use crate::real;
use gpuslice_nvabi::types::*;

/// The properties of a call's work found so far.
#[derive(Clone, Copy, Debug)]
struct Sketch {
    kind: Option<TransferKind>,
    default_stream: DefaultStream,
    stream: CUstream,
    /// Product of the sizes found.
    bytes: u64,
    /// Number of entries in the lists, and the list of their sizes.
    count: usize,
    sizes: *const usize,
    /// Addresses, if only they determine the kind: the first two.
    ends: [CUdeviceptr; 2],
}

/// Whether `name` contains `part`.
const fn has(name: &str, part: &str) -> bool {
    let (name, part) = (name.as_bytes(), part.as_bytes());
    let mut at = 0;
    while at + part.len() <= name.len() {
        let mut same = 0;
        while same < part.len() && name[at + same] == part[same] {
            same += 1;
        }
        if same == part.len() {
            return true;
        }
        at += 1;
    }
    false
}

/// The driver's answer for an address; also for host memory and unknown memory.
fn on_device(address: CUdeviceptr) -> bool {
    let mut kind: CUmemorytype = 0;
    let attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    let asked = real!(cuPointerGetAttribute((&raw mut kind).cast(), attribute, address));
    asked == CUresult::SUCCESS && kind == CU_MEMORYTYPE_DEVICE
}

/// Whether one end of a copy described by a structure is on the host.
fn of_host(kind: CUmemorytype, address: CUdeviceptr) -> bool {
    match kind {
        CU_MEMORYTYPE_HOST => true,
        CU_MEMORYTYPE_UNIFIED => !on_device(address),
        _ => false,
    }
}

/// The sum of a list of sizes; 0 for no list.
fn sum(sizes: *const usize, count: usize) -> u64 {
    let size = |at: usize| {
        // SAFETY: the application's list of so many sizes, which the driver is about to read.
        unsafe { sizes.wrapping_add(at).read_unaligned() as u64 }
    };
    let count = if sizes.is_null() { 0 } else { count };
    (0..count).map(size).fold(0, u64::saturating_add)
}

impl Sketch {
    /// The properties that follow from the name of a function.
    const fn of(name: &str) -> Sketch {
        let to_or_from_host =
            has(name, "HtoD") || has(name, "DtoH") || has(name, "HtoA") || has(name, "AtoH");
        let within = has(name, "DtoD") || has(name, "DtoA") || has(name, "AtoD");
        let kind = if has(name, "Memset") {
            Some(TransferKind::Fill)
        } else if to_or_from_host {
            Some(TransferKind::Bus)
        } else if within || has(name, "AtoA") || has(name, "Peer") {
            Some(TransferKind::Device)
        } else {
            None
        };
        let per_thread = has(name, "_ptds") || has(name, "_ptsz");
        Sketch {
            kind,
            default_stream: if per_thread {
                DefaultStream::PerThread
            } else {
                DefaultStream::Legacy
            },
            stream: CUstream::NULL,
            bytes: 1,
            count: 0,
            sizes: core::ptr::null(),
            ends: [0; 2],
        }
    }

    /// Adds an argument.
    fn with(mut self, name: &str, argument: impl Property) -> Sketch {
        argument.apply(name, &mut self);
        self
    }

    /// Multiplies the size by a number.
    fn times(&mut self, number: u64) {
        self.bytes = self.bytes.saturating_mul(number);
    }

    /// A copy between these ends, of memory of these types.
    fn between(&mut self, kinds: [CUmemorytype; 2], ends: [CUdeviceptr; 2], sides: [usize; 3]) {
        let host = of_host(kinds[0], ends[0]) || of_host(kinds[1], ends[1]);
        self.kind = Some(if host { TransferKind::Bus } else { TransferKind::Device });
        for side in sides {
            self.times(side as u64);
        }
    }

    fn work(mut self) -> Work {
        if !self.sizes.is_null() {
            self.bytes = sum(self.sizes, self.count);
        }
        let kind = self.kind.unwrap_or_else(|| {
            let [to, from] = self.ends;
            let known = to != 0 && from != 0;
            if known && !(on_device(to) && on_device(from)) {
                TransferKind::Bus
            } else {
                TransferKind::Device
            }
        });
        Work::bytes(kind, self.bytes, self.stream, self.default_stream)
    }
}

/// Adds to a sketch the property that follows from an argument of that name.
trait Property {
    fn apply(self, name: &str, sketch: &mut Sketch);
}

impl Property for usize {
    fn apply(self, name: &str, sketch: &mut Sketch) {
        match name {
            "byte_count" | "size" | "n" | "width" | "height" => sketch.times(self as u64),
            "count" => sketch.count = self,
            _ => {} // pitches, offsets
        }
    }
}

impl Property for u32 {
    fn apply(self, name: &str, sketch: &mut Sketch) {
        match name {
            "ui" => sketch.times(4), // the fill value
            _ => (self as usize).apply(name, sketch),
        }
    }
}

impl Property for u16 {
    fn apply(self, _: &str, sketch: &mut Sketch) {
        sketch.times(2);
    }
}

impl Property for u8 {
    fn apply(self, _: &str, _: &mut Sketch) {}
}

/// An address, or flags.
impl Property for u64 {
    fn apply(self, name: &str, sketch: &mut Sketch) {
        match name {
            "dst" => sketch.ends[0] = self,
            "src" => sketch.ends[1] = self,
            _ => {}
        }
    }
}

impl Property for CUstream {
    fn apply(self, _: &str, sketch: &mut Sketch) {
        sketch.stream = self;
    }
}

impl Property for *mut usize {
    fn apply(self, name: &str, sketch: &mut Sketch) {
        if name == "sizes" {
            sketch.sizes = self;
        }
    }
}

/// Structures of two- and three-dimensional copies.
macro_rules! described {
    ($($structure:ident: $sides:expr;)*) => {$(
        impl Property for *const $structure {
            fn apply(self, _: &str, sketch: &mut Sketch) {
                // SAFETY: null, or the application's own, which the driver is about to read.
                if let Some(copy) = unsafe { self.as_ref() } {
                    let kinds = [copy.dst_memory_type, copy.src_memory_type];
                    let sides: fn(&$structure) -> [usize; 3] = $sides;
                    sketch.between(kinds, [copy.dst_device, copy.src_device], sides(copy));
                }
            }
        }
    )*};
}

described! {
    CUDA_MEMCPY2D: |copy| [copy.width_in_bytes, copy.height, 1];
    CUDA_MEMCPY3D: |copy| [copy.width_in_bytes, copy.height, copy.depth];
}

/// Arguments that determine neither size nor kind.
macro_rules! silent {
    ($($silent:ty),*) => {$(
        impl Property for $silent {
            fn apply(self, _: &str, _: &mut Sketch) {}
        }
    )*};
}

silent!(CUarray, CUcontext, *const c_void, *mut c_void, *mut CUdeviceptr, *mut CUmemcpyAttributes);

/// Generates hooks for all rows of a family.
macro_rules! moving {
    ($([$s:ident, $m:ident, $v:literal] $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        launches! {
            $($name($($arg: $ty),*) as
                const { Sketch::of(stringify!($name)) }$(.with(stringify!($arg), $arg))*.work();)*
        }
    };
}

mod copies {
    use super::*;
    gpuslice_nvabi::for_each_driver_copy_fn!(moving);
}

mod fills {
    use super::*;
    gpuslice_nvabi::for_each_driver_set_fn!(moving);
}

mod pages;

pub use copies::*;
pub use fills::*;
pub use pages::*;

#[cfg(test)]
mod tests {
    use super::*;

    fn sketch(name: &str) -> Sketch {
        Sketch::of(name)
    }

    #[test]
    fn names_determine_kind_and_stream_variant() {
        for (name, kind) in [
            ("cuMemcpyHtoDAsync_v2", Some(TransferKind::Bus)),
            ("cuMemcpyAtoH_v2_ptds", Some(TransferKind::Bus)),
            ("cuMemcpyDtoD", Some(TransferKind::Device)),
            ("cuMemcpyAtoD_v2", Some(TransferKind::Device)),
            ("cuMemcpyPeerAsync", Some(TransferKind::Device)),
            ("cuMemsetD2D8Async", Some(TransferKind::Fill)),
            ("cuMemcpyAsync", None),
            ("cuMemcpy2D_v2", None),
            ("cuMemcpyBatchAsync_v2", None),
        ] {
            assert_eq!(sketch(name).kind, kind, "{name}");
        }
        assert_eq!(sketch("cuMemcpy_ptds").default_stream, DefaultStream::PerThread);
        assert_eq!(sketch("cuMemcpyAsync_ptsz").default_stream, DefaultStream::PerThread);
        assert_eq!(sketch("cuMemcpy").default_stream, DefaultStream::Legacy);
    }

    #[test]
    fn arguments_determine_bytes() {
        let fill = sketch("cuMemsetD2D16Async");
        let fill = fill.with("dst_device", 4096_u64).with("dst_pitch", 512_usize);
        let fill = fill.with("us", 7_u16).with("width", 100_usize);
        assert_eq!(fill.with("height", 3_usize).bytes, 600);
        let old = sketch("cuMemsetD32").with("dst_device", 1_u32);
        assert_eq!(old.with("ui", 9_u32).with("n", 5_u32).bytes, 20);
        let sizes = [1_usize, 2, usize::MAX];
        let mut batch = sketch("cuMemcpyBatchAsync_v2").with("sizes", sizes.as_ptr().cast_mut());
        batch = batch.with("count", 2_usize).with("num_attrs", 77_usize);
        assert_eq!(sum(batch.sizes, batch.count), 3);
        assert_eq!(sum(sizes.as_ptr(), 3), u64::MAX);
        assert_eq!(sum(core::ptr::null(), 3), 0);
    }

    #[test]
    fn structures_determine_bytes_and_kind() {
        // SAFETY: numbers and pointers; all bits zero is a value of each.
        let mut copy: CUDA_MEMCPY2D = unsafe { core::mem::zeroed() };
        (copy.width_in_bytes, copy.height) = (10, 20);
        (copy.src_memory_type, copy.dst_memory_type) = (CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_ARRAY);
        let up = sketch("cuMemcpy2D_v2").with("p_copy", &raw const copy);
        assert_eq!((up.kind, up.bytes), (Some(TransferKind::Bus), 200));
        copy.src_memory_type = CU_MEMORYTYPE_DEVICE;
        let within = sketch("cuMemcpy2D_v2").with("p_copy", &raw const copy);
        assert_eq!(within.kind, Some(TransferKind::Device));
        let none = core::ptr::null::<CUDA_MEMCPY2D>();
        assert_eq!(sketch("cuMemcpy2D_v2").with("p_copy", none).kind, None);
    }
}
