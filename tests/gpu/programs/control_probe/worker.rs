//! A process's own work on the GPU, whose progress can be watched and whose results can be checked.

use crate::Options;
use crate::page::{BYTES, Meter, Page};
use gpuslice_apps::driver::{Error, check};
use gpuslice_apps::spin::{ROUNDS_NAME, Rounds, SPIN_PTX, computed};
use gpuslice_nvabi::control::class;
use gpuslice_nvabi::types::{
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    CUcontext, CUdeviceptr, CUevent, CUfunction, CUmodule, CUresult, CUstream,
};
use gpuslice_shim::channels::{self, objects::ChannelGroup};
use gpuslice_sim_device::Machine;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

gpuslice_apps::driver_functions! {
    /// The driver's functions that a probe needs.
    Driver {
        cuInit,
        cuDeviceGet,
        cuCtxCreate_v2,
        cuModuleLoadData,
        cuModuleGetFunction,
        cuDeviceGetAttribute,
        cuFuncSetAttribute,
        cuStreamCreate,
        cuStreamQuery,
        cuStreamWaitValue32_v2,
        cuLaunchKernel,
        cuEventCreate,
        cuEventRecord,
        cuEventSynchronize,
        cuMemAlloc_v2,
        cuMemsetD32_v2,
        cuMemcpyDtoH_v2,
        cuMemHostRegister_v2,
        cuMemHostGetDevicePointer_v2,
    }
}

/// An idle GPU takes so long to reach full speed.
const WARM_UP: Duration = Duration::from_millis(500);
/// Length of the memory that must be unchanged after every stop, words.
const PATTERN_WORDS: usize = 1 << 20;
const PATTERN: u32 = 0x600d_600d;

/// Names of a channel group and what belongs to it, in one client's tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    pub client: u32,
    pub group: u32,
    pub subdevice: u32,
    pub channels: Vec<u32>,
}

/// How much of the GPU a kernel of ours takes.
#[derive(Clone, Copy)]
struct Shape {
    grid: u32,
    block: u32,
    /// Bytes of shared memory of a block.
    shared: u32,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { grid: 1, block: 1, shared: 0 }
    }
}

/// See the file's head.
pub struct Worker {
    cuda: Driver,
    function: CUfunction,
    shape: Shape,
    stream: CUstream,
    counter: CUdeviceptr,
    pattern: CUdeviceptr,
    page: Arc<Page>,
    page_seen: CUdeviceptr,
    machine: Option<&'static Machine>,
    rounds_per_us: f64,
    launched: u32,
    rounds: u64,
    last: u64,
}

impl Worker {
    /// Makes a context, its kernel and its memory, and watches which objects the driver makes for them.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(options: &Options, page: Page) -> Result<Worker, Error> {
        let cuda = Driver::load()?;
        channels::look(cuda.cuInit as *const c_void);
        let (mut device, mut context, mut module) = (0, CUcontext::NULL, CUmodule::NULL);
        let mut worker = Worker {
            cuda,
            function: CUfunction::NULL,
            shape: Shape::default(),
            stream: CUstream::NULL,
            counter: 0,
            pattern: 0,
            page: Arc::new(page),
            page_seen: 0,
            machine: None,
            rounds_per_us: options.rounds_per_us,
            launched: 0,
            rounds: 0,
            last: 0,
        };
        // SAFETY: every out-pointer is a live local or field; text and name are NUL-terminated.
        unsafe {
            check("cuInit", (cuda.cuInit)(0))?;
            check("cuDeviceGet", (cuda.cuDeviceGet)(&mut device, 0))?;
            let made = (cuda.cuCtxCreate_v2)(&mut context, 0, device);
            check("cuCtxCreate", made)?;
            let load = (cuda.cuModuleLoadData)(&mut module, SPIN_PTX.as_ptr().cast());
            check("cuModuleLoadData", load)?;
            let name = ROUNDS_NAME.as_ptr();
            let get = (cuda.cuModuleGetFunction)(&mut worker.function, module, name);
            check("cuModuleGetFunction", get)?;
            let made = (cuda.cuStreamCreate)(&mut worker.stream, 1);
            check("cuStreamCreate", made)?;
        }
        if options.wide {
            worker.shape = worker.whole(device)?;
        }
        worker.memory()?;
        if options.sim {
            let machine = Machine::observe().map_err(|why| Error::Load(why.to_string()))?;
            worker.machine = Some(machine);
        } else if worker.rounds_per_us == 0.0 {
            worker.rounds_per_us = worker.calibrate()?;
        }
        Ok(worker)
    }

    /// The shape that fills a GPU: a block on every multiprocessor, with all the threads and shared memory it can have.
    fn whole(&self, device: i32) -> Result<Shape, Error> {
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: a live local.
            let got = unsafe { (self.cuda.cuDeviceGetAttribute)(&mut value, which, device) };
            check("cuDeviceGetAttribute", got).map(|()| value)
        };
        let grid = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let dynamic = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a live function.
        let set = unsafe { (self.cuda.cuFuncSetAttribute)(self.function, dynamic, shared) };
        check("cuFuncSetAttribute", set)?;
        Ok(Shape { grid: grid.max(1) as u32, block: 1024, shared: shared.max(0) as u32 })
    }

    fn memory(&mut self) -> Result<(), Error> {
        let cuda = self.cuda;
        const DEVICEMAP: u32 = 2;
        let page = self.page.address().cast::<c_void>();
        // SAFETY: out-pointers to live fields; the page stays mapped.
        unsafe {
            let alloc = (cuda.cuMemAlloc_v2)(&mut self.counter, 256);
            check("cuMemAlloc", alloc)?;
            check("cuMemset", (cuda.cuMemsetD32_v2)(self.counter, 0, 64))?;
            let alloc = (cuda.cuMemAlloc_v2)(&mut self.pattern, 4 * PATTERN_WORDS);
            check("cuMemAlloc", alloc)?;
            let set = (cuda.cuMemsetD32_v2)(self.pattern, PATTERN, PATTERN_WORDS);
            check("cuMemset", set)?;
            let register = (cuda.cuMemHostRegister_v2)(page, BYTES, DEVICEMAP);
            check("cuMemHostRegister", register)?;
            let seen = (cuda.cuMemHostGetDevicePointer_v2)(&mut self.page_seen, page, 0);
            check("cuMemHostGetDevicePointer", seen)
        }
    }

    /// Rounds per microsecond of a GPU that no other process uses, from the difference of two lengths, which leaves out
    /// the cost of a launch.
    fn calibrate(&mut self) -> Result<f64, Error> {
        const FEW: u64 = 100_000;
        self.rounds_per_us = 1.0;
        let start = Instant::now();
        while start.elapsed() < WARM_UP {
            self.launch_rounds(FEW, 0)?;
            self.settle(Duration::from_secs(20))?;
        }
        let mut best = [Duration::MAX; 2];
        for turn in 0..10 {
            let (which, times) = (turn % 2, [1, 5][turn % 2]);
            let start = Instant::now();
            self.launch_rounds(times * FEW, 0)?;
            self.settle(Duration::from_secs(20))?;
            best[which] = best[which].min(start.elapsed());
        }
        let took = best[1].saturating_sub(best[0]).as_secs_f64() * 1e6;
        Ok(4.0 * FEW as f64 / took.max(1.0))
    }

    /// Rounds per microsecond.
    pub fn rounds_per_us(&self) -> f64 {
        self.rounds_per_us
    }

    /// Queues work for so long.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(&mut self, length: Duration) -> Result<(), Error> {
        let us = length.as_secs_f64() * 1e6;
        let rounds = (us * self.rounds_per_us) as u64;
        self.launch_rounds(rounds.max(1), length.as_nanos() as u64)
    }

    fn launch_rounds(&mut self, rounds: u64, nanoseconds: u64) -> Result<(), Error> {
        let mut arguments = Rounds {
            nanoseconds,
            rounds,
            base: self.rounds,
            page: self.page_seen,
            counter: self.counter,
        };
        let mut params = arguments.pointers();
        let (f, s, params) = (self.function, self.stream, params.as_mut_ptr());
        // SAFETY: the kernel's five arguments, which are copied by the call.
        check("cuLaunchKernel", unsafe {
            let Shape { grid, block, shared } = self.shape;
            let no_more = null_mut();
            (self.cuda.cuLaunchKernel)(f, grid, 1, 1, block, 1, 1, shared, s, params, no_more)
        })?;
        self.launched += 1;
        self.rounds += rounds;
        self.last = rounds;
        Ok(())
    }

    /// An event that can be recorded again and again.
    ///
    /// # Errors
    /// The driver's.
    pub fn event(&self) -> Result<CUevent, Error> {
        const NO_TIME: u32 = 2;
        let mut event = CUevent::NULL;
        // SAFETY: a live local.
        let made = unsafe { (self.cuda.cuEventCreate)(&mut event, NO_TIME) };
        check("cuEventCreate", made).map(|()| event)
    }

    /// Records an event behind the queued work.
    ///
    /// # Errors
    /// The driver's.
    pub fn record(&self, event: CUevent) -> Result<(), Error> {
        // SAFETY: a live event and stream.
        check("cuEventRecord", unsafe { (self.cuda.cuEventRecord)(event, self.stream) })
    }

    /// Waits until the GPU has reached an event.
    ///
    /// # Errors
    /// The driver's.
    pub fn wait(&self, event: CUevent) -> Result<(), Error> {
        // SAFETY: a live event.
        check("cuEventSynchronize", unsafe { (self.cuda.cuEventSynchronize)(event) })
    }

    /// Queues a wait for the page's gate to be open.
    ///
    /// # Errors
    /// The driver's.
    pub fn wait_for_gate(&self) -> Result<(), Error> {
        const AND: u32 = 2;
        let gate = self.page_seen + Page::gate_offset();
        // SAFETY: a live stream, a word of the registered page.
        check("cuStreamWaitValue32", unsafe {
            (self.cuda.cuStreamWaitValue32_v2)(self.stream, gate, 1, AND)
        })
    }

    /// Waits for the end of the queued work; whether it came.
    ///
    /// # Errors
    /// The driver's: the work itself failed.
    pub fn settle(&self, within: Duration) -> Result<bool, Error> {
        let start = Instant::now();
        loop {
            // SAFETY: a live stream.
            let answer = unsafe { (self.cuda.cuStreamQuery)(self.stream) };
            if answer != CUresult::ERROR_NOT_READY {
                return check("the work", answer).map(|()| true);
            }
            if start.elapsed() > within {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Whether all that was launched has counted itself, computed what it had to, and left other memory as it was.
    ///
    /// # Errors
    /// The driver's.
    pub fn is_right(&self) -> Result<bool, Error> {
        let mut counted = 0u32;
        let mut words = vec![0u32; PATTERN_WORDS];
        // SAFETY: copies what was allocated with these lengths into live locals.
        unsafe {
            let copy = (self.cuda.cuMemcpyDtoH_v2)((&raw mut counted).cast(), self.counter, 4);
            check("cuMemcpyDtoH", copy)?;
            let to = words.as_mut_ptr().cast();
            let copy = (self.cuda.cuMemcpyDtoH_v2)(to, self.pattern, 4 * PATTERN_WORDS);
            check("cuMemcpyDtoH", copy)?;
        }
        let told = self.machine.is_some()
            || self.launched == 0
            || (self.page.progress(), self.page.computed()) == (self.rounds, computed(self.last));
        let threads = self.shape.grid.wrapping_mul(self.shape.block);
        Ok(counted == self.launched.wrapping_mul(threads)
            && told
            && words.iter().all(|word| *word == PATTERN))
    }

    /// How much of the GPU it has had.
    pub fn meter(&self) -> Meter {
        match self.machine {
            Some(machine) => Meter::Account(machine, std::process::id()),
            None => Meter::Told(Arc::clone(&self.page)),
        }
    }

    /// The page.
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// Its channel group, if it was seen.
    pub fn group(&self) -> Option<ChannelGroup> {
        channels::groups(1).into_iter().next()
    }

    /// That group's names.
    pub fn names(&self) -> Option<Names> {
        let group = self.group()?;
        let all = channels::seen();
        let its = all.iter().filter(|made| {
            (made.client, made.parent) == (group.client, group.group)
                && class::CHANNELS.contains(&made.class)
        });
        Some(Names {
            client: group.client,
            group: group.group,
            subdevice: group.subdevice,
            channels: its.map(|made| made.handle).collect(),
        })
    }
}
