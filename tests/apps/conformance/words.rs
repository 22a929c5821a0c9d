//! The vocabulary of cases.
//!
//! A case states the behaviour of a device of a certain size: so much is free, this takes so much,
//! that is refused, afterwards the state is as before. The size is that of `cuMemGetInfo`, so the same
//! statements hold on a bare device and in a slice of a larger one.

use gpuslice_apps::api::{ABSENT, calls};
use gpuslice_nvabi::types::*;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Drivers give memory out in pieces of this size.
pub const GRAIN: usize = 2 << 20;
/// How long the memory of another process may take to be counted, or to come back. A machine with more work than
/// CPUs can let a daemon wait for seconds; no case is about that time.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const OOM: CUresult = CUresult::ERROR_OUT_OF_MEMORY;
pub const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;
pub const SUCCESS: CUresult = CUresult::SUCCESS;

/// Why a case ended early.
#[derive(Debug)]
pub enum Stop {
    /// It cannot be tried here.
    Skip(String),
    /// The device does not do what it should.
    Fail(String),
}

/// How a case ended.
pub type Outcome<T = ()> = Result<T, Stop>;

/// Ends a case that cannot be tried here.
pub fn skip<T>(why: impl Display) -> Outcome<T> {
    Err(Stop::Skip(why.to_string()))
}

/// Ends a case that failed.
pub fn fail<T>(why: impl Display) -> Outcome<T> {
    Err(Stop::Fail(why.to_string()))
}

/// Which of several right answers this process was given. Drivers differ there, and a slice may not differ from the
/// bare device: the line of a case that passes has them.
static ANSWERS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Notes an answer.
pub fn note(answer: String) {
    ANSWERS.lock().unwrap_or_else(|it| it.into_inner()).insert(answer);
}

/// The answers that were noted.
pub fn noted() -> String {
    let answers = ANSWERS.lock().unwrap_or_else(|it| it.into_inner());
    answers.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// Judges an answer. What the driver does not have is no failure.
pub fn expect(call: &str, line: u32, allowed: &[CUresult], got: CUresult) -> Outcome<CUresult> {
    if allowed.contains(&got) {
        // Whether memory is left is a question, which the case judges.
        if allowed.len() > 1 && ![SUCCESS, OOM].iter().all(|it| allowed.contains(it)) {
            note(format!("{call}={got:?}"));
        }
        return Ok(got);
    }
    match got {
        ABSENT => skip(format_args!("the driver has no {call}")),
        CUresult::ERROR_NOT_SUPPORTED => {
            skip(format_args!("the driver does not support {call} here"))
        }
        _ => fail(format_args!("{call} (line {line}) answered {got:?}, expected {allowed:?}")),
    }
}

/// The call succeeds.
macro_rules! ok {
    ($call:ident($($arg:expr),* $(,)?)) => {
        $crate::words::expect(
            stringify!($call), line!(), &[$crate::words::SUCCESS],
            gpuslice_apps::api::calls::$call($($arg),*),
        )?
    };
}

/// The call answers this code, or one of these.
macro_rules! says {
    ([$($code:expr),+], $call:ident($($arg:expr),* $(,)?)) => {
        $crate::words::expect(
            stringify!($call), line!(), &[$($code),+],
            gpuslice_apps::api::calls::$call($($arg),*),
        )?
    };
    ($code:expr, $call:ident($($arg:expr),* $(,)?)) => {
        says!([$code], $call($($arg),*))
    };
}

/// The condition holds.
macro_rules! that {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return $crate::words::fail(format_args!("line {}: {}", line!(), format_args!($($text)+)));
        }
    };
}

/// A family of cases: a table of names and functions. Each is given a device with a context; those
/// called bare make what they need.
macro_rules! family {
    ($family:literal: $($($case:ident),+ $(,)?;)? $(bare: $($bare:ident),+ $(,)?)?) => {
        /// The cases of this family.
        pub const CASES: &[$crate::words::Case] = &[
            $($($crate::words::Case {
                name: concat!($family, "/", stringify!($case)),
                run: || $case($crate::words::gpu()?),
            },)+)?
            $($($crate::words::Case {
                name: concat!($family, "/", stringify!($bare)),
                run: $bare,
            },)+)?
        ];
    };
}
pub(crate) use {family, ok, says, that};

/// A case and its name.
pub struct Case {
    pub name: &'static str,
    pub run: fn() -> Outcome,
}

/// A device with a context that is current.
#[derive(Clone, Copy)]
pub struct Gpu {
    pub device: CUdevice,
    pub context: CUcontext,
    /// Free bytes when the case began, or since [`Gpu::measured`].
    pub before: usize,
}

/// Initialises the driver and makes a context on the first device.
pub fn gpu() -> Outcome<Gpu> {
    let (mut device, mut context) = (0, CUcontext::NULL);
    ok!(cuInit(0));
    ok!(cuDeviceGet(&mut device, 0));
    ok!(cuCtxCreate_v2(&mut context, 0, device));
    let gpu = Gpu { device, context, before: 0 };
    if ALONE.swap(false, Ordering::Relaxed) {
        gpu.usual()?;
    }
    gpu.measured()
}

/// Whether this process runs a case, and has no context yet.
pub static ALONE: AtomicBool = AtomicBool::new(false);

impl Gpu {
    /// Free and total bytes.
    pub fn info(self) -> Outcome<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        ok!(cuMemGetInfo_v2(&mut free, &mut total));
        that!(free <= total, "{free} bytes are free of {total}");
        Ok((free, total))
    }

    /// Waits until as much is free as there was when other cases began: the one before has ended,
    /// and what it had may be on its way back. Others may be at work on this device as well: then this
    /// is as good as it gets.
    fn usual(self) -> Outcome {
        let Some(path) = std::env::var_os(crate::child::USUAL) else {
            return Ok(());
        };
        let most = std::fs::read_to_string(&path).ok();
        let most = most.and_then(|text| text.parse().ok()).unwrap_or(0);
        let start = Instant::now();
        while self.free()? + GRAIN < most && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
        let now = self.free()?;
        if now > most {
            std::fs::write(path, now.to_string()).or_else(fail)?;
        }
        Ok(())
    }

    pub fn free(self) -> Outcome<usize> {
        Ok(self.info()?.0)
    }

    pub fn total(self) -> Outcome<usize> {
        Ok(self.info()?.1)
    }

    /// One of `n` equal parts of the device, in whole pieces.
    pub fn part(self, n: usize) -> Outcome<usize> {
        Ok((self.total()? / n / GRAIN * GRAIN).max(GRAIN))
    }

    /// The same device, compared with what is free now.
    pub fn measured(self) -> Outcome<Self> {
        let before = self.free()?;
        Ok(Self { before, ..self })
    }

    /// As much is free as before.
    pub fn back(self) -> Outcome {
        self.differs(0, GRAIN)
    }

    /// `bytes` less are free than before, or up to `extra` further.
    pub fn took(self, bytes: usize, extra: usize) -> Outcome {
        self.differs(bytes, bytes / 64 + extra)
    }

    /// As much is free as before, once processes that have ended and shared descriptors that were closed are
    /// cleared away. No call of this process does that: the driver and the daemon learn of an end from the kernel.
    pub fn back_after_others(self) -> Outcome {
        after_others(|| self.back())
    }

    /// The same for [`Gpu::took`].
    pub fn took_after_others(self, bytes: usize, extra: usize) -> Outcome {
        after_others(|| self.took(bytes, extra))
    }

    fn differs(self, bytes: usize, extra: usize) -> Outcome {
        let (before, free) = (self.before, self.free()?);
        let least = before.saturating_sub(bytes + extra);
        let most = (before + if bytes == 0 { extra } else { 0 }).saturating_sub(bytes);
        that!(
            (least..=most).contains(&free),
            "{free} bytes are free; {before} before, {bytes} to be taken, so {least} to {most} expected"
        );
        Ok(())
    }

    /// Memory of `cuMemAlloc`.
    pub fn alloc(self, bytes: usize) -> Outcome<CUdeviceptr> {
        let mut at = 0;
        ok!(cuMemAlloc_v2(&mut at, bytes));
        that!(at != 0, "cuMemAlloc gave a null pointer");
        Ok(at)
    }

    /// Frees memory of `cuMemAlloc`.
    pub fn release(self, at: CUdeviceptr) -> Outcome {
        ok!(cuMemFree_v2(at));
        Ok(())
    }

    /// So many pieces of `step` bytes are what was free, but for one that may not have fitted.
    pub fn fitted(self, pieces: usize, step: usize) -> Outcome {
        let before = self.before;
        that!(
            pieces * step <= before && pieces + 1 >= before / step,
            "{pieces} times {step} of {before}"
        );
        Ok(())
    }

    /// No more than this is taken.
    pub fn took_at_most(self, bytes: usize) -> Outcome {
        let (free, before) = (self.free()?, self.before);
        that!(free + bytes >= before, "{free} of {before} free");
        Ok(())
    }

    /// Allocates pieces until the device is full, and says how it refused.
    pub fn fill(self, step: usize) -> Outcome<Vec<CUdeviceptr>> {
        let mut all = Vec::new();
        loop {
            let mut at = 0;
            let code = says!([SUCCESS, OOM], cuMemAlloc_v2(&mut at, step));
            if code == OOM {
                return Ok(all);
            }
            all.push(at);
        }
    }

    pub fn release_all(self, all: Vec<CUdeviceptr>) -> Outcome {
        all.into_iter().try_for_each(|at| self.release(at))
    }

    /// Waits for all work.
    pub fn synchronize(self) -> Outcome {
        ok!(cuCtxSynchronize());
        Ok(())
    }

    /// A stream that waits for no other.
    pub fn stream(self) -> Outcome<CUstream> {
        let mut stream = CUstream::NULL;
        ok!(cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING));
        Ok(stream)
    }

    pub fn attribute(self, attribute: CUdevice_attribute) -> Outcome<i32> {
        let mut value = 0;
        ok!(cuDeviceGetAttribute(&mut value, attribute, self.device));
        Ok(value)
    }

    /// This device as a place of memory.
    pub fn location(self) -> CUmemLocation {
        CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: self.device }
    }

    /// The memory holds what is written to it, at its two ends.
    pub fn usable(self, at: CUdeviceptr, bytes: usize) -> Outcome {
        for place in [at, at + bytes as u64 - 4] {
            let (wrote, mut read) = (0x5a5a_0000 ^ place as u32, 0u32);
            ok!(cuMemsetD32_v2(place, wrote, 1));
            ok!(cuMemcpyDtoH_v2((&raw mut read).cast(), place, 4));
            that!(read == wrote, "{read:#x} is read where {wrote:#x} was written");
        }
        Ok(())
    }
}

/// Makes a context current, or none.
pub fn set_current(context: CUcontext) -> Outcome {
    expect("cuCtxSetCurrent", 0, &[SUCCESS], calls::cuCtxSetCurrent(context)).map(drop)
}

/// Checks again until processes that have ended are cleared away.
fn after_others(check: impl Fn() -> Outcome) -> Outcome {
    let start = Instant::now();
    while check().is_err() && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
    check()
}

/// Waits until something becomes true.
pub fn eventually(what: &str, mut happens: impl FnMut() -> Outcome<bool>) -> Outcome {
    let start = Instant::now();
    while !happens()? {
        if start.elapsed() > PATIENCE {
            return fail(format_args!("never happened: {what}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Reproducible noise (xorshift64*).
pub struct Random(pub u64);

impl Random {
    /// Below `limit`, or 0.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) as usize % limit.max(1)
    }
}
