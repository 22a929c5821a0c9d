//! The cost of driver calls to a program: prints one line of JSON a row.
//!
//! Launches are timed in short batches with the queue drained between them, so that a full queue is
//! never what is measured. Each row gives the median over its batches, and the quartiles beside it:
//! the runner compares rows of interleaved runs, never numbers of one run alone.

use gpuslice_apps::driver::{Error, check};
use gpuslice_nvabi::types::{
    CUcontext, CUdeviceptr, CUfunction, CUgraph, CUgraphExec, CUmodule, CUresult, CUstream,
};
use std::process::ExitCode;
use std::ptr::null_mut;
use std::time::Instant;

gpuslice_apps::driver_functions! {
    /// The measured functions, and those that they need.
    Driver {
        cuInit,
        cuDeviceGet,
        cuCtxCreate_v2,
        cuModuleLoadData,
        cuModuleGetFunction,
        cuStreamCreate,
        cuStreamSynchronize,
        cuLaunchKernel,
        cuMemAlloc_v2,
        cuMemFree_v2,
        cuMemAllocAsync,
        cuMemFreeAsync,
        cuMemGetInfo_v2,
        cuMemsetD32Async,
        cuStreamBeginCapture_v2,
        cuStreamEndCapture,
        cuGraphInstantiateWithFlags,
        cuGraphLaunch,
    }
}

/// A kernel that does nothing.
const NOTHING: &std::ffi::CStr = c".version 6.0
.target sm_50
.address_size 64

.visible .entry nothing()
{
    ret;
}
";

const BATCHES: usize = 101;
/// Half of what the driver queues of small launches before a launch blocks.
const LAUNCHES: usize = 400;
/// Kernels in the measured graph.
const NODES: usize = 20;
/// Allocations of one size in a batch: the large ones are slow.
const SIZES: [(&str, usize, usize); 4] = [
    ("alloc+free 4 KiB", 4 << 10, 200),
    ("alloc+free 2 MiB", 2 << 20, 50),
    ("alloc+free 64 MiB", 64 << 20, 10),
    ("async alloc+free 1 MiB", 1 << 20, 100),
];

struct Meter {
    cuda: Driver,
    function: CUfunction,
    stream: CUstream,
    graph: CUgraphExec,
    target: CUdeviceptr,
}

impl Meter {
    fn new() -> Result<Meter, Error> {
        let cuda = Driver::load()?;
        let (mut device, mut context) = (0, CUcontext::NULL);
        let mut meter = Meter {
            cuda,
            function: CUfunction::NULL,
            stream: CUstream::NULL,
            graph: CUgraphExec(null_mut()),
            target: 0,
        };
        let mut module = CUmodule::NULL;
        // SAFETY: every out-pointer is a live local or field; text and name are NUL-terminated.
        unsafe {
            check("cuInit", (cuda.cuInit)(0))?;
            check("cuDeviceGet", (cuda.cuDeviceGet)(&mut device, 0))?;
            check("cuCtxCreate", (cuda.cuCtxCreate_v2)(&mut context, 0, device))?;
            let load = (cuda.cuModuleLoadData)(&mut module, NOTHING.as_ptr().cast());
            check("cuModuleLoadData", load)?;
            let name = c"nothing".as_ptr();
            let get = (cuda.cuModuleGetFunction)(&mut meter.function, module, name);
            check("cuModuleGetFunction", get)?;
            check("cuStreamCreate", (cuda.cuStreamCreate)(&mut meter.stream, 1))?;
            let alloc = (cuda.cuMemAlloc_v2)(&mut meter.target, 4096);
            check("cuMemAlloc", alloc)?;
        }
        meter.graph = meter.capture()?;
        Ok(meter)
    }

    fn capture(&self) -> Result<CUgraphExec, Error> {
        let (mut graph, mut exec) = (CUgraph(null_mut()), CUgraphExec(null_mut()));
        let cuda = &self.cuda;
        // SAFETY: a live stream, and out-pointers to live locals; 0 = global capture.
        unsafe {
            let begin = (cuda.cuStreamBeginCapture_v2)(self.stream, 0);
            check("cuStreamBeginCapture", begin)?;
            for _ in 0..NODES {
                self.launch();
            }
            let end = (cuda.cuStreamEndCapture)(self.stream, &mut graph);
            check("cuStreamEndCapture", end)?;
            let made = (cuda.cuGraphInstantiateWithFlags)(&mut exec, graph, 0);
            check("cuGraphInstantiate", made)?;
        }
        Ok(exec)
    }

    fn launch(&self) -> CUresult {
        let (f, s) = (self.function, self.stream);
        // SAFETY: a live function without parameters, a live stream.
        unsafe { (self.cuda.cuLaunchKernel)(f, 1, 1, 1, 32, 1, 1, 0, s, null_mut(), null_mut()) }
    }

    fn drain(&self) -> Result<(), Error> {
        // SAFETY: a live stream.
        check("cuStreamSynchronize", unsafe { (self.cuda.cuStreamSynchronize)(self.stream) })
    }

    /// Times batches of `calls` calls of `call`; `row` is for the report.
    fn row(&self, row: &str, calls: usize, call: impl Fn() -> CUresult) -> Result<(), Error> {
        let mut batches = Vec::with_capacity(BATCHES);
        for batch in 0..BATCHES + BATCHES / 10 {
            let start = Instant::now();
            for _ in 0..calls {
                check("a measured call", call())?;
            }
            let each = start.elapsed().as_nanos() as f64 / calls as f64;
            self.drain()?;
            if batch >= BATCHES / 10 {
                batches.push(each);
            }
        }
        batches.sort_by(f64::total_cmp);
        let at = |part: usize| batches[batches.len() * part / 4];
        println!(
            r#"{{"row":"{row}","median_ns":{:.1},"q1_ns":{:.1},"q3_ns":{:.1}}}"#,
            at(2),
            at(1),
            at(3)
        );
        Ok(())
    }

    fn all(&self) -> Result<(), Error> {
        let cuda = &self.cuda;
        self.row("launch", LAUNCHES, || self.launch())?;
        // SAFETY: a live executable graph and stream.
        self.row("graph launch", 20, || unsafe { (cuda.cuGraphLaunch)(self.graph, self.stream) })?;
        // SAFETY: 1,024 words of an allocation of 4 KiB.
        self.row("memset", LAUNCHES, || unsafe {
            (cuda.cuMemsetD32Async)(self.target, 0, 1024, self.stream)
        })?;
        let (mut free, mut total) = (0usize, 0usize);
        let (free, total) = (&raw mut free, &raw mut total);
        // SAFETY: both are live locals.
        self.row("MemGetInfo", 100, || unsafe { (cuda.cuMemGetInfo_v2)(free, total) })?;
        for (name, bytes, calls) in SIZES {
            self.row(name, calls, || self.pair(bytes, name.starts_with("async")))?;
        }
        Ok(())
    }

    /// One allocation and its release; the first failure is the answer.
    fn pair(&self, bytes: usize, ordered: bool) -> CUresult {
        let (cuda, mut address) = (&self.cuda, 0);
        // SAFETY: `address` is ours, and what is freed was just allocated.
        unsafe {
            let got = match ordered {
                true => (cuda.cuMemAllocAsync)(&mut address, bytes, self.stream),
                false => (cuda.cuMemAlloc_v2)(&mut address, bytes),
            };
            match (got, ordered) {
                (CUresult::SUCCESS, true) => (cuda.cuMemFreeAsync)(address, self.stream),
                (CUresult::SUCCESS, false) => (cuda.cuMemFree_v2)(address),
                _ => got,
            }
        }
    }
}

fn main() -> ExitCode {
    gpuslice_apps::status("meter", Meter::new().and_then(|meter| meter.all()))
}
