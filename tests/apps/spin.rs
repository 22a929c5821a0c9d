//! The kernel every tenant launches: spin for a given time, then count itself.
//!
//! On a real GPU the PTX polls `%globaltimer`; the simulated GPU takes the duration from the first
//! argument and does the count. The counter in device memory is the tenant's own proof of how
//! much GPU time it got, independent of anybody's books.

use std::ffi::CStr;

/// Name of the kernel: `spin(u64 nanoseconds, u32 *counter)`.
pub const SPIN_NAME: &CStr = c"spin";

/// PTX of the kernel, for every GPU since compute capability 5.0.
pub const SPIN_PTX: &CStr = c".version 6.0
.target sm_50
.address_size 64

.visible .entry spin(.param .u64 spin_param_0, .param .u64 spin_param_1)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<6>;

    ld.param.u64 %rd1, [spin_param_0];
    ld.param.u64 %rd2, [spin_param_1];
    cvta.to.global.u64 %rd3, %rd2;
    mov.u64 %rd4, %globaltimer;
    add.u64 %rd4, %rd4, %rd1;
again:
    mov.u64 %rd5, %globaltimer;
    setp.lt.u64 %p1, %rd5, %rd4;
    @%p1 bra again;
    atom.global.add.u32 %r1, [%rd3], 1;
    ret;
}
";
