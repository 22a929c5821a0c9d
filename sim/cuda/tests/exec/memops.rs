//! Waits on words and writes to them.

use crate::common::{MS, World, pinned, stream, word};
use crate::harness::alloc;
use gpuslice_nvabi::types::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

fn operation(kind: CUstreamBatchMemOpType, address: u64, value64: u64) -> CUstreamBatchMemOpParams {
    let flags = 0;
    let operation = kind;
    CUstreamBatchMemOpParams {
        write_value: CUstreamMemOpValueParams { operation, address, value64, flags, alias: 0 },
    }
}

scenarios! {
    one_stream_opens_another("") {
        let world = World::new();
        let (first, second) = (stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING));
        let (gate, counter) = (alloc(4), alloc(4));
        ok!(cuStreamWaitValue32_v2(second, gate, 5, CU_STREAM_WAIT_VALUE_GEQ));
        world.spin(second, MS, counter);
        world.spin(first, MS, 0);
        ok!(cuStreamWriteValue32_v2(first, gate, 4, 0));
        ok!(cuStreamSynchronize(first));
        refused!(ERROR_NOT_READY, cuStreamQuery(second));
        ok!(cuStreamWriteValue32_v2(first, gate, 6, 0));
        ok!(cuStreamSynchronize(second));
        assert_eq!((word(counter), word(gate)), (1, 6));
    }

    the_processor_opens_a_stream("") {
        let world = World::new();
        let stream = stream(CU_STREAM_NON_BLOCKING);
        let (gate, counter) = (pinned(), alloc(4));
        let mut device = 0;
        ok!(cuMemHostGetDevicePointer_v2(&mut device, gate.cast(), 0));
        ok!(cuStreamWaitValue32_v2(stream, device, 2, CU_STREAM_WAIT_VALUE_AND));
        world.spin(stream, MS, counter);
        // SAFETY: pinned memory of this test; the driver uses the word atomically.
        let gate = unsafe { AtomicU32::from_ptr(gate) };
        gate.store(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        refused!(ERROR_NOT_READY, cuStreamQuery(stream));
        assert_eq!(word(counter), 0);
        gate.store(3, Ordering::SeqCst);
        ok!(cuStreamSynchronize(stream));
        assert_eq!(word(counter), 1);
    }

    memory_the_program_registered("") {
        let world = World::new();
        let stream = stream(CU_STREAM_NON_BLOCKING);
        // SAFETY: new anonymous memory.
        let page = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), 4096, access, flags, -1, 0)
        };
        let mut device = 0;
        refused!(ERROR_INVALID_VALUE, cuStreamWriteValue32_v2(stream, page as u64, 1, 0));
        ok!(cuMemHostRegister_v2(page, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
        ok!(cuMemHostGetDevicePointer_v2(&mut device, page, 0));
        world.spin(stream, MS, 0);
        ok!(cuStreamWriteValue32_v2(stream, device, 11, 0));
        ok!(cuStreamWriteValue64_v2(stream, device + 8, u64::MAX - 1, 0));
        ok!(cuStreamWaitValue64_v2(stream, device + 8, u64::MAX - 1, CU_STREAM_WAIT_VALUE_EQ));
        ok!(cuStreamSynchronize(stream));
        // SAFETY: the stream has ended; no other thread writes there.
        let found = unsafe { (page.cast::<u32>().read(), page.cast::<u64>().add(1).read()) };
        assert_eq!(found, (11, u64::MAX - 1));
        refused!(ERROR_INVALID_VALUE, cuStreamWriteValue32_v2(stream, device + 2, 1, 0));
        refused!(ERROR_INVALID_VALUE, cuStreamWaitValue32_v2(stream, device, 1, 4));
    }

    a_batch_happens_in_its_order("") {
        let _world = World::new();
        let stream = stream(CU_STREAM_NON_BLOCKING);
        let at = alloc(16);
        let mut list = [
            operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, at, 1),
            operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, at, 1),
            operation(CU_STREAM_MEM_OP_BARRIER, 0, 0),
            operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, at + 8, 9),
            operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, at, 2),
        ];
        ok!(cuStreamBatchMemOp_v2(stream, 5, list.as_mut_ptr(), 0));
        ok!(cuStreamSynchronize(stream));
        assert_eq!((word(at), word(at + 8)), (2, 9));
        list[4] = operation(99, at, 3);
        refused!(ERROR_INVALID_VALUE, cuStreamBatchMemOp_v2(stream, 5, list.as_mut_ptr(), 0));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(word(at), 2, "a batch with a mistake does nothing");
    }
}
