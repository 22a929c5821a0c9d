//! Xid events: what the driver writes into the kernel log and NVML tells its listeners when a
//! context dies by a fault. The last few hundred are kept; a listener remembers how many it has
//! seen.

use crate::layout::{Event, State};
use crate::limits::EVENTS;

/// A context was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XidEvent {
    pub time_ns: u64,
    pub gpu: usize,
    pub xid: u32,
}

pub(crate) fn record(state: &mut State, time_ns: u64, gpu: u32, xid: u32, slot: u32) {
    let at = (state.event_count % EVENTS as u64) as usize;
    state.events[at] = Event { time_ns, gpu, xid, slot, reserved: 0 };
    state.event_count += 1;
}

/// The first event after the `seen` first ones (or the oldest still known), with the count to
/// remember for the next call.
pub(crate) fn next(state: &State, seen: u64) -> Option<(XidEvent, u64)> {
    let at = seen.max(state.event_count.saturating_sub(EVENTS as u64));
    if at >= state.event_count {
        return None;
    }
    let event = state.events[(at % EVENTS as u64) as usize];
    Some((XidEvent { time_ns: event.time_ns, gpu: event.gpu as usize, xid: event.xid }, at + 1))
}
