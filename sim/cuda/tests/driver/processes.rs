//! Several processes: fork, shared memory, sudden death.

use crate::harness::{MIB, alloc, context_on, free_bytes, get, pattern, put};
use crate::virtual_memory::{on_device, open_to};
use gpuslice_nvabi::types::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::ptr::null_mut;

const PARTNER: &str = "GPUSLICE_TEST_PARTNER";

/// Starts this test again as the partner, with one end of a socket pair as descriptor `fd`.
pub fn partner(name: &str, end: &UnixStream, extra: Option<i32>) -> Child {
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    let fds: Vec<i32> = std::iter::once(end.as_raw_fd()).chain(extra).collect();
    let list: Vec<String> = fds.iter().map(i32::to_string).collect();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command.env(PARTNER, list.join(","));
    // SAFETY: only system calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            for fd in &fds {
                libc::fcntl(*fd, libc::F_SETFD, 0);
            }
            Ok(())
        })
    };
    command.spawn().unwrap()
}

/// The descriptors this process was given as a partner.
pub fn given() -> Option<Vec<i32>> {
    let list = std::env::var(PARTNER).ok()?;
    Some(list.split(',').map(|fd| fd.parse().unwrap()).collect())
}

pub fn socket(fd: i32) -> UnixStream {
    // SAFETY: the descriptor was given to this process for this use alone.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }
}

pub fn wait_for_byte(stream: &mut UnixStream) {
    stream.read_exact(&mut [0]).unwrap();
}

/// Opens what the parent shares, checks it, writes into it, says so, waits, closes.
fn ipc_partner(fds: &[i32]) {
    let mut stream = socket(fds[0]);
    context_on(0);
    let before = free_bytes();
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    let mut bytes = [0_u8; 64];
    stream.read_exact(&mut bytes).unwrap();
    handle.reserved = bytes.map(|byte| byte as _);
    let mut pointer = 0;
    ok!(cuIpcOpenMemHandle_v2(&mut pointer, handle, 1));
    assert_eq!(get(pointer, 1000), pattern(1000, 21));
    refused!(ERROR_INVALID_VALUE, cuMemFree_v2(pointer));
    put(pointer, b"seen");
    assert_eq!(free_bytes(), before, "an import costs nothing");
    stream.write_all(&[1]).unwrap();
    wait_for_byte(&mut stream);
    // The exporter has freed it; the bytes are still here.
    assert_eq!(get(pointer, 4), b"seen");
    ok!(cuIpcCloseMemHandle(pointer));
    refused!(ERROR_INVALID_VALUE, cuIpcCloseMemHandle(pointer));
    refused!(ERROR_INVALID_VALUE, cuIpcOpenMemHandle_v2(&mut pointer, handle, 1));
}

fn vmm_partner(fds: &[i32]) {
    let mut stream = socket(fds[0]);
    context_on(0);
    let (mut handle, mut address) = (0, 0);
    let fd = fds[1] as usize as *mut c_void;
    refused!(
        ERROR_INVALID_VALUE,
        cuMemImportFromShareableHandle(&mut handle, fds[0] as usize as *mut c_void, 1)
    );
    ok!(cuMemImportFromShareableHandle(&mut handle, fd, 1));
    ok!(cuMemAddressReserve(&mut address, 4 * MIB, 0, 0, 0));
    ok!(cuMemMap(address, 4 * MIB, 0, handle, 0));
    ok!(cuMemSetAccess(address, 4 * MIB, &open_to(0), 1));
    assert_eq!(get(address, 4 * MIB), pattern(4 * MIB, 3));
    put(address + 100, b"partner");
    stream.write_all(&[1]).unwrap();
}

scenarios! {
    a_forked_child_has_no_driver("") {
        context_on(0);
        let pointer = alloc(64);
        // SAFETY: the child makes calls of the driver, which answer at once, and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut count = 0;
            let answers = [
                call!(cuInit(0)),
                call!(cuDeviceGetCount(&mut count)),
                call!(cuMemFree_v2(pointer)),
                call!(cuCtxGetCurrent(&mut CUcontext(null_mut()))),
            ];
            let good = answers.iter().all(|answer| *answer == CUresult::ERROR_NOT_INITIALIZED);
            // SAFETY: leaves without the parent's exit handlers.
            unsafe { libc::_exit(if good { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: waits for the child started above.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0);
        ok!(cuMemFree_v2(pointer));
    }

    memory_by_handle("mem=256MiB,context=32MiB") {
        if let Some(fds) = given() {
            return ipc_partner(&fds);
        }
        context_on(0);
        let before = free_bytes();
        alloc(100);
        let pointer = alloc(1000);
        put(pointer, &pattern(1000, 21));
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        refused!(ERROR_INVALID_VALUE, cuIpcGetMemHandle(&mut handle, 0x1000));
        ok!(cuIpcGetMemHandle(&mut handle, pointer));
        refused!(ERROR_INVALID_CONTEXT, cuIpcOpenMemHandle_v2(&mut 0, handle, 1));
        let garbage = CUipcMemHandle { reserved: [3; 64] };
        refused!(ERROR_INVALID_VALUE, cuIpcOpenMemHandle_v2(&mut 0, garbage, 1));
        let large = alloc(6 * MIB);
        put(large, &pattern(1000, 21));
        ok!(cuIpcGetMemHandle(&mut handle, large));
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut child = partner("processes::memory_by_handle", &theirs, None);
        ours.write_all(&handle.reserved.map(|byte| byte as u8)).unwrap();
        wait_for_byte(&mut ours);
        assert_eq!(get(large, 4), b"seen");
        ok!(cuMemFree_v2(large));
        assert_eq!(before - free_bytes(), 40 * MIB, "its context, what it holds, our small ones");
        ours.write_all(&[1]).unwrap();
        assert!(child.wait().unwrap().success());
        // The device notices an end within milliseconds.
        let noticed = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            before - free_bytes() == 2 * MIB
        });
        assert!(noticed, "our small ones and {}", before - free_bytes() - 2 * MIB);
    }

    memory_by_descriptor("mem=256MiB") {
        if let Some(fds) = given() {
            return vmm_partner(&fds);
        }
        context_on(0);
        let (mut handle, mut address, mut fd) = (0, 0, -1);
        ok!(cuMemCreate(&mut handle, 4 * MIB, &on_device(0), 0));
        ok!(cuMemAddressReserve(&mut address, 4 * MIB, 0, 0, 0));
        ok!(cuMemMap(address, 4 * MIB, 0, handle, 0));
        ok!(cuMemSetAccess(address, 4 * MIB, &open_to(0), 1));
        put(address, &pattern(4 * MIB, 3));
        ok!(cuMemExportToShareableHandle((&raw mut fd).cast(), handle, 1, 0));
        assert!(fd > 2);
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut child = partner("processes::memory_by_descriptor", &theirs, Some(fd));
        wait_for_byte(&mut ours);
        assert_eq!(get(address + 100, 7), b"partner");
        assert!(child.wait().unwrap().success());
        // Imported by its own process it is the same memory, counted once more.
        let mut again = 0;
        ok!(cuMemImportFromShareableHandle(&mut again, fd as usize as *mut c_void, 1));
        ok!(cuMemRelease(handle));
        ok!(cuMemUnmap(address, 4 * MIB));
        ok!(cuMemMap(address, 4 * MIB, 0, again, 0));
        ok!(cuMemSetAccess(address, 4 * MIB, &open_to(0), 1));
        assert_eq!(get(address + 100, 7), b"partner");
    }

    a_descriptor_holds_memory("mem=256MiB,context=32MiB") {
        context_on(0);
        let all = free_bytes();
        let (mut handle, mut again, mut address, mut fd) = (0, 0, 0, -1);
        ok!(cuMemCreate(&mut handle, 100 * MIB, &on_device(0), 0));
        ok!(cuMemExportToShareableHandle((&raw mut fd).cast(), handle, 1, 0));
        ok!(cuMemRelease(handle));
        // A copy of the descriptor is as good as the descriptor.
        // SAFETY: descriptors of this test alone.
        let copy = unsafe { libc::dup(fd) };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::close(fd) }, 0);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(all - free_bytes(), 100 * MIB);
        refused!(ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&mut address, 130 * MIB));
        let shared = copy as usize as *mut c_void;
        ok!(cuMemImportFromShareableHandle(&mut again, shared, 1));
        ok!(cuMemAddressReserve(&mut address, 100 * MIB, 0, 0, 0));
        ok!(cuMemMap(address, 100 * MIB, 0, again, 0));
        ok!(cuMemSetAccess(address, 100 * MIB, &open_to(0), 1));
        put(address, b"kept");
        ok!(cuMemUnmap(address, 100 * MIB));
        ok!(cuMemRelease(again));
        assert_eq!(all - free_bytes(), 100 * MIB);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::close(copy) }, 0);
        refused!(ERROR_INVALID_VALUE, cuMemImportFromShareableHandle(&mut again, shared, 1));
        // The next allocation gets the memory at once, and wiped.
        let pointer = alloc(all);
        assert_eq!(get(pointer, 4), [0; 4]);
        ok!(cuMemFree_v2(pointer));
        // A descriptor closed first leaves nothing to wait for.
        ok!(cuMemCreate(&mut handle, 100 * MIB, &on_device(0), 0));
        ok!(cuMemExportToShareableHandle((&raw mut fd).cast(), handle, 1, 0));
        // SAFETY: as above.
        assert_eq!(unsafe { libc::close(fd) }, 0);
        ok!(cuMemRelease(handle));
        assert_eq!(free_bytes(), all);
    }

    a_killed_process_leaves_nothing("mem=256MiB,context=32MiB") {
        if let Some(fds) = given() {
            context_on(0);
            alloc(100 * MIB);
            alloc(100);
            socket(fds[0]).write_all(&[1]).unwrap();
            std::thread::sleep(std::time::Duration::from_secs(60));
            return;
        }
        context_on(0);
        let before = free_bytes();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut child = partner("processes::a_killed_process_leaves_nothing", &theirs, None);
        wait_for_byte(&mut ours);
        assert_eq!(before - free_bytes(), 134 * MIB);
        child.kill().unwrap();
        child.wait().unwrap();
        // The next allocation gets the memory at once.
        ok!(cuMemFree_v2(alloc(before)));
    }
}
