//! The kernels of tenants: one of a given duration, one of a given amount of work.
//!
//! `spin` watches the GPU's clock until its duration is over. That is GPU time only while no other process runs:
//! the clock does not stop for a kernel that is off the GPU, which then ends early. `spin_rounds` computes: it
//! needs the same GPU time whatever happens, and writes its progress to a page of host memory while it runs. The
//! rounds that a GPU does in a millisecond must be measured first.
//!
//! The simulated GPU runs neither; it takes the duration from the first argument, and adds one to the word at the last
//! argument. That count is the tenant's own proof of its GPU time, independent of the ledger.

use std::ffi::{CStr, c_void};

/// Name of the first kernel: `spin(u64 nanoseconds, u32 *counter)`.
pub const SPIN_NAME: &CStr = c"spin";
/// Name of the second one, with the arguments of [`Rounds`].
pub const ROUNDS_NAME: &CStr = c"spin_rounds";

/// PTX of both, for every GPU since compute capability 5.0.
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

.visible .entry spin_rounds(.param .u64 nanoseconds, .param .u64 rounds, .param .u64 base,
    .param .u64 page, .param .u64 counter)
{
    .reg .pred %p<5>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<9>;

    ld.param.u64 %rd1, [rounds];
    ld.param.u64 %rd2, [base];
    ld.param.u64 %rd3, [page];
    ld.param.u64 %rd4, [counter];
    cvta.to.global.u64 %rd5, %rd3;
    cvta.to.global.u64 %rd6, %rd4;
    setp.eq.u64 %p1, %rd3, 0;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %ctaid.x;
    or.b32 %r3, %r3, %r4;
    setp.ne.u32 %p4, %r3, 0;
    or.pred %p1, %p1, %p4;
    mov.u64 %rd7, 0;
    mov.u32 %r1, 1;
again:
    mad.lo.u32 %r1, %r1, 1664525, 1013904223;
    add.u64 %rd7, %rd7, 1;
    and.b64 %rd8, %rd7, 1023;
    setp.ne.u64 %p2, %rd8, 0;
    or.pred %p2, %p2, %p1;
    @%p2 bra untold;
    add.u64 %rd8, %rd2, %rd7;
    st.volatile.global.u64 [%rd5], %rd8;
untold:
    setp.lt.u64 %p3, %rd7, %rd1;
    @%p3 bra again;
    @%p1 bra counted;
    add.u64 %rd8, %rd2, %rd7;
    st.volatile.global.u64 [%rd5], %rd8;
    st.volatile.global.u32 [%rd5+8], %r1;
    membar.sys;
counted:
    atom.global.add.u32 %r2, [%rd6], 1;
    ret;
}
";

/// Arguments of a launch of [`ROUNDS_NAME`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Rounds {
    /// What the simulated GPU takes for it.
    pub nanoseconds: u64,
    /// What a real one does; at least one round.
    pub rounds: u64,
    /// Rounds of the launches before.
    pub base: u64,
    /// Where the first thread's progress goes, every 1,024 rounds: a word for `base` and the rounds done, then the
    /// number computed in all of its own. 0 for nowhere.
    pub page: u64,
    /// Word that every thread adds one to at its end.
    pub counter: u64,
}

impl Rounds {
    /// What `cuLaunchKernel` takes, as long as `self` stays where it is.
    pub fn pointers(&mut self) -> [*mut c_void; 5] {
        [
            (&raw mut self.nanoseconds).cast(),
            (&raw mut self.rounds).cast(),
            (&raw mut self.base).cast(),
            (&raw mut self.page).cast(),
            (&raw mut self.counter).cast(),
        ]
    }
}

/// The number that so many rounds compute from 1.
#[must_use]
pub fn computed(rounds: u64) -> u32 {
    // `n` rounds are one step x -> factor * x + offset, and so are twice as many.
    let (mut value, mut left) = (1u32, rounds.max(1));
    let (mut factor, mut offset) = (1_664_525u32, 1_013_904_223u32);
    while left > 0 {
        if left % 2 == 1 {
            value = value.wrapping_mul(factor).wrapping_add(offset);
        }
        offset = offset.wrapping_mul(factor).wrapping_add(offset);
        factor = factor.wrapping_mul(factor);
        left /= 2;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_at_once_are_rounds_one_by_one() {
        let mut value = 1u32;
        for rounds in 1..5000 {
            value = value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            assert_eq!(computed(rounds), value, "{rounds}");
        }
        assert_eq!(computed(0), computed(1), "the kernel does at least one");
    }
}
