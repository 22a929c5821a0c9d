//! Checkpoints of another process: the order of the calls, what they refuse, and what they leave.

use crate::harness::{MIB, alloc, context_on, free_bytes, get, pattern, put};
use crate::processes::{given, partner, socket, wait_for_byte};
use gpuslice_nvabi::types::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Memory of the partner, and of the caller meanwhile.
const BYTES: usize = 600 * MIB;

/// The process that is locked; killed when dropped.
struct Target {
    child: Child,
    stream: UnixStream,
}

impl Target {
    /// Starts the test again as the partner, and waits until it has its memory.
    fn start(name: &str) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let child = partner(&format!("checkpoints::{name}"), &theirs, None);
        let mut target = Self { child, stream: ours };
        wait_for_byte(&mut target.stream);
        target
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn state(&self) -> CUprocessState {
        let mut state = CUprocessState::MAX;
        ok!(cuCheckpointProcessGetState(self.pid(), &mut state));
        state
    }

    /// Lets it read its memory; returns once it has.
    fn reads(&mut self) {
        self.does(1);
    }

    /// Lets it do what has this number; returns once it has.
    fn does(&mut self, number: u8) {
        self.stream.write_all(&[number]).unwrap();
        wait_for_byte(&mut self.stream);
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The partner: has memory of its own, and reads it whenever it is told to.
fn holds_memory(more: fn()) -> bool {
    let Some(fds) = given() else { return false };
    let mut stream = socket(fds[0]);
    context_on(0);
    let pointer = alloc(BYTES);
    put(pointer, &pattern(MIB, 3));
    put(pointer + (BYTES - MIB) as u64, &pattern(MIB, 4));
    more();
    loop {
        stream.write_all(&[1]).unwrap();
        wait_for_byte(&mut stream);
        assert_eq!(get(pointer, MIB), pattern(MIB, 3));
        assert_eq!(get(pointer + (BYTES - MIB) as u64, MIB), pattern(MIB, 4));
    }
}

/// How many ways there are to wait for all work.
const WAYS: u8 = 4;

/// The partner: waits for its work, whenever and as it is told to.
fn waits_for_work() -> bool {
    let Some(fds) = given() else { return false };
    let mut stream = socket(fds[0]);
    context_on(0);
    loop {
        stream.write_all(&[1]).unwrap();
        let mut told = [0];
        stream.read_exact(&mut told).unwrap();
        match told[0] {
            0 => ok!(cuCtxSynchronize()),
            1 => ok!(cuCtxSynchronize_v2(CUcontext::NULL)),
            2 => ok!(cuStreamSynchronize(CUstream::NULL)),
            _ => ok!(cuStreamSynchronize_ptsz(CUstream::NULL)),
        }
    }
}

/// Makes a legacy handle of memory, which no process opens.
fn exports() {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    ok!(cuIpcGetMemHandle(&mut handle, alloc(MIB)));
}

/// Names the call that the caller makes, and its target.
const CALLER: &str = "GPUSLICE_TEST_CALLER";

/// Starts the test again as a process that makes a call for the target.
fn caller(call: &str, pid: i32) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "checkpoints::a_move_goes_on_without_its_caller", "--test-threads=1"]);
    command.env(CALLER, format!("{call} {pid}")).spawn().unwrap()
}

/// The caller: makes the call that it is told of.
fn calls_and_waits() -> bool {
    let Ok(told) = std::env::var(CALLER) else { return false };
    let (call, pid) = told.split_once(' ').unwrap();
    let pid = pid.parse().unwrap();
    ok!(cuInit(0));
    match call {
        "checkpoint" => ok!(cuCheckpointProcessCheckpoint(pid, null_mut())),
        _ => ok!(cuCheckpointProcessRestore(pid, null_mut())),
    }
    true
}

/// Waits until a call of another process has begun; the limit is far beyond what any machine needs.
fn eventually(what: &str, has_begun: impl Fn() -> bool) {
    let start = Instant::now();
    while !has_begun() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The length of the GPU's memory file.
fn vram_len() -> u64 {
    let dir = PathBuf::from(std::env::var("GPUSLICE_SIM_DEVICE").unwrap());
    std::fs::metadata(dir.join("node/vram0")).unwrap().len()
}

/// How long the partner's kernel runs.
const KERNEL: Duration = Duration::from_secs(2);

/// A kernel that takes so many nanoseconds and then adds one to a counter.
fn spin() -> CUfunction {
    let mut module = CUmodule::NULL;
    let ptx = c".version 8.0\n.target sm_80\n.address_size 64\n\
        .visible .entry spin(.param .u64 ns, .param .u64 counter)\n{ ret; }";
    ok!(cuModuleLoadData(&mut module, ptx.as_ptr().cast()));
    let mut spin = CUfunction::NULL;
    ok!(cuModuleGetFunction(&mut spin, module, c"spin".as_ptr()));
    spin
}

fn launch(spin: CUfunction, time: Duration, counter: CUdeviceptr) {
    let (mut ns, mut counter) = (time.as_nanos() as u64, counter);
    let mut args = [(&raw mut ns).cast::<c_void>(), (&raw mut counter).cast()];
    let args = args.as_mut_ptr();
    ok!(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, args, null_mut()));
}

/// The partner: begins a kernel whenever it is told to.
fn works_for_long() -> bool {
    let Some(fds) = given() else { return false };
    let mut stream = socket(fds[0]);
    context_on(0);
    let (spin, counter) = (spin(), alloc(MIB));
    loop {
        stream.write_all(&[1]).unwrap();
        wait_for_byte(&mut stream);
        launch(spin, KERNEL, counter);
    }
}

/// The partner: waits for a fill that takes a thread of the driver's long, with a kernel behind it. From then on it
/// calls nothing.
fn leaves_work_to_the_driver() -> bool {
    let Some(fds) = given() else { return false };
    let mut stream = socket(fds[0]);
    context_on(0);
    let (spin, counter, filled) = (spin(), alloc(MIB), alloc(BYTES));
    let mut event = CUevent::NULL;
    ok!(cuEventCreate(&mut event, 0));
    launch(spin, Duration::from_millis(20), counter);
    ok!(cuMemsetD8Async(filled, 7, BYTES, CUstream::NULL));
    ok!(cuEventRecord(event, CUstream::NULL));
    launch(spin, KERNEL, counter);
    ok!(cuEventSynchronize(event));
    stream.write_all(&[1]).unwrap();
    wait_for_byte(&mut stream);
    true
}

scenarios! {
    /// While a process is checkpointed, another one has the room; afterwards each byte is back.
    memory_is_free_for_others_and_comes_back("mem=1GiB,context=0B") {
        if holds_memory(|| ()) { return }
        context_on(0);
        let before = free_bytes();
        let mut target = Target::start("memory_is_free_for_others_and_comes_back");
        let pid = target.pid();
        assert_eq!(target.state(), CU_PROCESS_STATE_RUNNING);
        ok!(cuCheckpointProcessLock(pid, null_mut()));
        assert_eq!((target.state(), free_bytes()), (CU_PROCESS_STATE_LOCKED, before - BYTES));
        let begun = Instant::now();
        ok!(cuCheckpointProcessCheckpoint(pid, null_mut()));
        // At 50 GB/s.
        assert!(begun.elapsed() >= Duration::from_micros(BYTES as u64 / 50_000));
        assert_eq!((target.state(), free_bytes()), (CU_PROCESS_STATE_CHECKPOINTED, before));
        // It waits in its call meanwhile.
        target.stream.write_all(&[1]).unwrap();
        let taken = alloc(BYTES);
        let end = taken + (BYTES - MIB) as u64;
        put(taken, &pattern(MIB, 8));
        put(end, &pattern(MIB, 9));
        assert_eq!((get(taken, MIB), get(end, MIB)), (pattern(MIB, 8), pattern(MIB, 9)));
        ok!(cuMemFree_v2(taken));
        ok!(cuCheckpointProcessRestore(pid, null_mut()));
        assert_eq!((target.state(), free_bytes()), (CU_PROCESS_STATE_LOCKED, before - BYTES));
        target.stream.set_nonblocking(true).unwrap();
        assert!(target.stream.read(&mut [0]).is_err(), "its call has returned");
        target.stream.set_nonblocking(false).unwrap();
        ok!(cuCheckpointProcessUnlock(pid, null_mut()));
        wait_for_byte(&mut target.stream);
        target.reads();
    }

    /// Not even with all the room there is. What it got is taken until the process ends.
    a_restore_without_room_is_the_last("mem=1GiB,context=0B") {
        if holds_memory(|| { alloc(64 * MIB); }) { return }
        context_on(0);
        let before = free_bytes();
        let target = Target::start("a_restore_without_room_is_the_last");
        let pid = target.pid();
        ok!(cuCheckpointProcessLock(pid, null_mut()));
        ok!(cuCheckpointProcessCheckpoint(pid, null_mut()));
        let taken = alloc(before - BYTES - 32 * MIB);
        refused!(ERROR_OUT_OF_MEMORY, cuCheckpointProcessRestore(pid, null_mut()));
        assert_eq!(free_bytes(), 32 * MIB, "the larger allocation fitted");
        ok!(cuMemFree_v2(taken));
        for _ in 0..2 {
            assert_eq!(target.state(), CU_PROCESS_STATE_CHECKPOINTED);
            refused!(ERROR_OPERATING_SYSTEM, cuCheckpointProcessRestore(pid, null_mut()));
            refused!(ERROR_ILLEGAL_STATE, cuCheckpointProcessUnlock(pid, null_mut()));
        }
        assert_eq!(free_bytes(), before - BYTES);
        drop(target);
        let all = alloc(before);
        put(all, &pattern(MIB, 1));
    }

    /// What a caller has begun goes on when it is killed, and a question for the state waits for the end. A process
    /// whose memory has returned so stays locked.
    a_move_goes_on_without_its_caller("mem=1GiB,context=0B,checkpoint=256MiB,restore=256MiB") {
        if calls_and_waits() || holds_memory(|| ()) { return }
        context_on(0);
        let before = free_bytes();
        let mut target = Target::start("a_move_goes_on_without_its_caller");
        let pid = target.pid();
        ok!(cuCheckpointProcessLock(pid, null_mut()));
        for (call, state, free) in [
            ("checkpoint", CU_PROCESS_STATE_CHECKPOINTED, before),
            ("restore", CU_PROCESS_STATE_LOCKED, before - BYTES),
        ] {
            let (begun, len) = (Instant::now(), vram_len());
            let mut caller = caller(call, pid);
            // A question for the state would wait for the end. A checkpoint makes the memory file longer as it begins,
            // a restore takes its room.
            eventually(call, || match call {
                "checkpoint" => vram_len() > len,
                _ => free_bytes() == free,
            });
            // The file is made longer and the move begun under one lock, for which this call waits.
            free_bytes();
            caller.kill().unwrap();
            assert_eq!(caller.wait().unwrap().signal(), Some(libc::SIGKILL), "{call} has returned");
            assert_eq!((target.state(), free_bytes()), (state, free), "{call}");
            assert!(begun.elapsed() >= Duration::from_millis((BYTES as u64 * 1000) >> 28), "{call}");
        }
        ok!(cuCheckpointProcessUnlock(pid, null_mut()));
        target.reads();
    }

    /// A process moves more memory to the host than the GPU has places for, twice.
    two_processes_are_away_at_once("mem=1GiB,context=0B") {
        if holds_memory(|| ()) { return }
        context_on(0);
        let before = free_bytes();
        let mut targets = Vec::new();
        for _ in 0..3 {
            let target = Target::start("two_processes_are_away_at_once");
            ok!(cuCheckpointProcessLock(target.pid(), null_mut()));
            ok!(cuCheckpointProcessCheckpoint(target.pid(), null_mut()));
            targets.push(target);
        }
        assert_eq!(free_bytes(), before);
        for target in &mut targets {
            ok!(cuCheckpointProcessRestore(target.pid(), null_mut()));
            ok!(cuCheckpointProcessUnlock(target.pid(), null_mut()));
            target.reads();
            ok!(cuCheckpointProcessLock(target.pid(), null_mut()));
            ok!(cuCheckpointProcessCheckpoint(target.pid(), null_mut()));
        }
        // What a process that dies has on the host ends with it.
        drop(targets);
        let all = alloc(before);
        put(all, &pattern(MIB, 1));
    }

    calls_have_an_order("mem=1GiB,context=0B") {
        if holds_memory(|| ()) { return }
        ok!(cuInit(0));
        let mut target = Target::start("calls_have_an_order");
        let pid = target.pid();
        refused!(ERROR_ILLEGAL_STATE, cuCheckpointProcessCheckpoint(pid, null_mut()));
        refused!(ERROR_ILLEGAL_STATE, cuCheckpointProcessRestore(pid, null_mut()));
        refused!(ERROR_ILLEGAL_STATE, cuCheckpointProcessUnlock(pid, null_mut()));
        let mut args = CUcheckpointLockArgs { reserved0: 1, ..Default::default() };
        refused!(ERROR_INVALID_VALUE, cuCheckpointProcessLock(pid, &mut args));
        ok!(cuCheckpointProcessLock(pid, null_mut()));
        refused!(ERROR_ILLEGAL_STATE, cuCheckpointProcessLock(pid, null_mut()));
        refused!(ERROR_ILLEGAL_STATE, cuCheckpointProcessRestore(pid, null_mut()));
        ok!(cuCheckpointProcessUnlock(pid, null_mut()));
        target.reads();
        let mut state = 0;
        for wrong in [0, -1, std::process::id() as i32, 1] {
            refused!(ERROR_INVALID_VALUE, cuCheckpointProcessLock(wrong, null_mut()));
            refused!(ERROR_INVALID_VALUE, cuCheckpointProcessGetState(wrong, &mut state));
        }
        refused!(ERROR_INVALID_VALUE, cuCheckpointProcessGetState(pid, null_mut()));
    }

    /// A lock waits for submitted work; out of time, the process runs on.
    a_lock_waits_for_work("mem=1GiB,context=0B") {
        if works_for_long() { return }
        ok!(cuInit(0));
        let mut target = Target::start("a_lock_waits_for_work");
        let pid = target.pid();
        let mut soon = CUcheckpointLockArgs { timeout_ms: 50, ..Default::default() };
        let begun = (0..5).find_map(|_| {
            let begun = Instant::now();
            target.does(1);
            let locked = call!(cuCheckpointProcessLock(pid, &mut soon));
            // This thread was late: the lock may have come after the kernel's end, and shows nothing.
            if locked == CUresult::SUCCESS && begun.elapsed() >= KERNEL {
                ok!(cuCheckpointProcessUnlock(pid, null_mut()));
                return None;
            }
            assert_eq!(locked, CUresult::ERROR_NOT_READY);
            Some(begun)
        });
        let begun = begun.expect("a lock before the kernel's end");
        assert_eq!(target.state(), CU_PROCESS_STATE_RUNNING);
        ok!(cuCheckpointProcessLock(pid, null_mut()));
        assert!(begun.elapsed() >= KERNEL, "with work in flight");
        assert_eq!(target.state(), CU_PROCESS_STATE_LOCKED);
    }

    /// Work that is in flight when the program's last call returns ends without another one.
    a_lock_waits_for_work_that_no_call_brings_to_its_end("mem=1GiB,context=0B") {
        if leaves_work_to_the_driver() { return }
        ok!(cuInit(0));
        let target = Target::start("a_lock_waits_for_work_that_no_call_brings_to_its_end");
        let mut args = CUcheckpointLockArgs { timeout_ms: 20_000, ..Default::default() };
        ok!(cuCheckpointProcessLock(target.pid(), &mut args));
        assert_eq!(target.state(), CU_PROCESS_STATE_LOCKED);
    }

    /// Calls that wait for all work go on while the process is locked, and end it while it is checkpointed.
    a_wait_for_work_ends_a_checkpointed_process("mem=1GiB,context=0B") {
        if waits_for_work() { return }
        ok!(cuInit(0));
        for number in 0..WAYS {
            let mut target = Target::start("a_wait_for_work_ends_a_checkpointed_process");
            let pid = target.pid();
            ok!(cuCheckpointProcessLock(pid, null_mut()));
            target.does(number);
            ok!(cuCheckpointProcessCheckpoint(pid, null_mut()));
            ok!(cuCheckpointProcessRestore(pid, null_mut()));
            target.does(number);
            ok!(cuCheckpointProcessUnlock(pid, null_mut()));
            target.does(number);
            ok!(cuCheckpointProcessLock(pid, null_mut()));
            ok!(cuCheckpointProcessCheckpoint(pid, null_mut()));
            target.stream.write_all(&[number]).unwrap();
            let ended = target.child.wait().unwrap();
            assert_eq!(ended.signal(), Some(libc::SIGSEGV), "{number}");
        }
    }

    /// The checkpoint succeeds, and no restore does: the process stays stuck.
    shared_memory_never_comes_back("mem=1GiB,context=0B,driver=13.0") {
        if holds_memory(exports) { return }
        ok!(cuInit(0));
        let target = Target::start("shared_memory_never_comes_back");
        let pid = target.pid();
        ok!(cuCheckpointProcessLock(pid, null_mut()));
        ok!(cuCheckpointProcessCheckpoint(pid, null_mut()));
        for _ in 0..2 {
            refused!(ERROR_INVALID_VALUE, cuCheckpointProcessRestore(pid, null_mut()));
            assert_eq!(target.state(), CU_PROCESS_STATE_CHECKPOINTED);
            refused!(ERROR_ILLEGAL_STATE, cuCheckpointProcessUnlock(pid, null_mut()));
        }
    }

    /// The checkpoint fails late, and the process ends with its next call.
    shared_memory_ends_a_process("mem=1GiB,context=0B,driver=13.2,shared=100ms") {
        if holds_memory(exports) { return }
        ok!(cuInit(0));
        let mut target = Target::start("shared_memory_ends_a_process");
        let (pid, begun) = (target.pid(), Instant::now());
        ok!(cuCheckpointProcessLock(pid, null_mut()));
        refused!(ERROR_UNKNOWN, cuCheckpointProcessCheckpoint(pid, null_mut()));
        assert!(begun.elapsed() >= Duration::from_millis(100));
        assert_eq!(target.state(), CU_PROCESS_STATE_FAILED);
        target.stream.write_all(&[1]).unwrap();
        assert_eq!(target.child.wait().unwrap().signal(), Some(libc::SIGSEGV));
    }

    /// Newer drivers support it; the simulated one does not, and leaves the process as it is.
    shared_memory_is_refused("mem=1GiB,context=0B,driver=13.3") {
        if holds_memory(exports) { return }
        ok!(cuInit(0));
        let mut target = Target::start("shared_memory_is_refused");
        ok!(cuCheckpointProcessLock(target.pid(), null_mut()));
        refused!(ERROR_NOT_SUPPORTED, cuCheckpointProcessCheckpoint(target.pid(), null_mut()));
        ok!(cuCheckpointProcessUnlock(target.pid(), null_mut()));
        target.reads();
    }

    managed_memory_is_refused("mem=1GiB,context=0B") {
        if holds_memory(|| { ok!(cuMemAllocManaged(&mut 0, MIB, 1)) }) { return }
        ok!(cuInit(0));
        let mut target = Target::start("managed_memory_is_refused");
        ok!(cuCheckpointProcessLock(target.pid(), null_mut()));
        refused!(ERROR_NOT_SUPPORTED, cuCheckpointProcessCheckpoint(target.pid(), null_mut()));
        assert_eq!(target.state(), CU_PROCESS_STATE_LOCKED);
        ok!(cuCheckpointProcessUnlock(target.pid(), null_mut()));
        target.reads();
    }

    a_driver_before_12_8_has_no_checkpoints("mem=1GiB,context=0B,driver=12.7") {
        if holds_memory(|| ()) { return }
        ok!(cuInit(0));
        let target = Target::start("a_driver_before_12_8_has_no_checkpoints");
        refused!(ERROR_NOT_SUPPORTED, cuCheckpointProcessLock(target.pid(), null_mut()));
    }

    a_fault_refuses_a_call("mem=1GiB,context=0B,fault=refuse=restore") {
        if holds_memory(|| ()) { return }
        ok!(cuInit(0));
        let target = Target::start("a_fault_refuses_a_call");
        ok!(cuCheckpointProcessLock(target.pid(), null_mut()));
        ok!(cuCheckpointProcessCheckpoint(target.pid(), null_mut()));
        refused!(ERROR_NOT_SUPPORTED, cuCheckpointProcessRestore(target.pid(), null_mut()));
        assert_eq!(target.state(), CU_PROCESS_STATE_CHECKPOINTED);
    }

    /// A checkpoint that ends half-way leaves a process that only its end helps.
    a_fault_leaves_half_of_it("mem=1GiB,context=0B,fault=half=checkpoint") {
        if holds_memory(|| { alloc(MIB * 64); }) { return }
        context_on(0);
        let before = free_bytes();
        let target = Target::start("a_fault_leaves_half_of_it");
        ok!(cuCheckpointProcessLock(target.pid(), null_mut()));
        refused!(ERROR_UNKNOWN, cuCheckpointProcessCheckpoint(target.pid(), null_mut()));
        assert_eq!(target.state(), CU_PROCESS_STATE_FAILED);
        refused!(ERROR_ILLEGAL_STATE, cuCheckpointProcessUnlock(target.pid(), null_mut()));
        drop(target);
        let all = alloc(before);
        put(all, &pattern(MIB, 1));
    }
}
