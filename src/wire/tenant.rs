//! Messages between a process in a slice and the daemon, on the container's own socket.
//!
//! The process attaches once and keeps the connection until it exits, which refunds everything. If it loses the
//! connection, it attaches again and reports what it holds. It reserves memory *credit* before it asks the driver,
//! mostly far more than one allocation needs, so that most allocations need no round trip. NVML's library in the
//! same process has its own connection, which is read-only.
//!
//! `Attached` carries four descriptors, in this order: the container's page (read-only, sealed), the process's own
//! page, the doorbell (an eventfd to which the process writes when its claims change), and the container's usage
//! table. A process whose frames have version 1 receives the first three.

use crate::frame::{Field, FrameError, Reader, Writer, field_as, messages};
use crate::ids::{ClientId, Lane};
use crate::limits::{ACCOUNTS_MAX, CHANNELS_PER_GROUP_MAX};
use crate::units::Bytes;

/// A digest of a shareable handle's bytes. Handles are not secret; a process that reports a foreign handle only gets
/// its own container charged for the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleKey(pub u64);

field_as!(HandleKey as u64, |key| key.0, |raw| Some(HandleKey(raw)));

/// The name of an object in the driver's kernel part, chosen by its owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName(pub u32);

field_as!(ObjectName as u32, |name| name.0, |raw| Some(ObjectName(raw)));

messages! {
    /// From a process to the daemon.
    Request {
        /// First frame of a connection. Idempotent per connection: a second one is refused.
        1 Attach {
            /// Memory that the process holds per lane, credit included: zeros at its start, its own account after it
            /// lost its connection. Accepted up to what it was granted; more must fit below the cap.
            held: [Bytes; ACCOUNTS_MAX],
        }
        /// First frame of a read-only connection, answered like `Attach`. Another connection may hold memory for the
        /// same process, so this one takes over nothing and is granted nothing.
        10 Look {}
        /// Asks for credit: at least `need`, at most `wish`. Not idempotent.
        2 Reserve {
            /// GPU of the slice.
            lane: Lane,
            /// The least amount that is useful; 0 for the answer alone, which waits while the memory is on the host.
            need: Bytes,
            /// The amount that saves further round trips; at least `need`.
            wish: Bytes,
        }
        /// Returns credit; no answer.
        3 Release {
            /// GPU of the slice.
            lane: Lane,
            /// At most what the process was granted; more is a violation.
            bytes: Bytes,
        }
        /// Gives back all credit that is not in use, because a sibling is short of it: answers the
        /// page's [`crate::page::ContainerLane::recall`]. No answer; once for each recall.
        4 Yield {
            /// GPU of the slice.
            lane: Lane,
            /// The page's number.
            recall: u32,
            /// Zero or more; at most what the process was granted.
            bytes: Bytes,
        }
        /// Reports memory that the process shares, by a digest of the handle.
        6 Share {
            /// Digest of the handle's bytes.
            key: HandleKey,
        }
        /// Asks whether a process of this container shared this handle. The answer may wait until the processes have
        /// attached again after a restart of the daemon.
        7 Open {
            /// Digest of the handle's bytes.
            key: HandleKey,
        }
        /// Reports a channel group in which kernels of this process run, so that the daemon can preempt them. No
        /// answer; with a wrong one nothing is preempted.
        8 Group {
            /// GPU of the slice.
            lane: Lane,
            /// The process's descriptor number of the open file with which it was created.
            fd: u32,
            /// The client of that file.
            client: ObjectName,
            /// The group.
            group: ObjectName,
            /// The object of its GPU in that client.
            subdevice: ObjectName,
        }
        /// A group no longer exists or must not be used any more. No answer.
        9 GroupGone {
            /// As reported.
            client: ObjectName,
            /// As reported.
            group: ObjectName,
        }
        /// Reports the channels of a reported group, which the daemon disables to stop its work. Sent only to a daemon
        /// whose page asks for them ([`crate::page::STOP_CHANNELS`]). No answer.
        11 Channels {
            /// As reported.
            client: ObjectName,
            /// As reported.
            group: ObjectName,
            /// Their names; 0 after the last one.
            channels: [ObjectName; CHANNELS_PER_GROUP_MAX],
        }
        /// Asks for the driver's present figure of this process's memory on a GPU: sent after a context was created,
        /// or another object whose size only the driver knows.
        5 Measure {
            /// GPU of the slice.
            lane: Lane,
        }
    }
}

messages! {
    /// From the daemon to a process.
    Reply {
        /// The process is attached; this frame carries the descriptors.
        101 Attached {
            /// Its identity until the connection ends.
            client: ClientId,
            /// GPUs of the slice: lanes 0 to `lanes` - 1.
            lanes: u8,
        }
        /// Credit granted; `need` <= `bytes` <= `wish`.
        102 Reserved {
            /// GPU of the slice.
            lane: Lane,
            /// Amount.
            bytes: Bytes,
        }
        /// The cap is reached: the allocation is out of memory.
        103 Refused {
            /// GPU of the slice.
            lane: Lane,
            /// The amount needed.
            need: Bytes,
            /// The amount left under the cap.
            left: Bytes,
        }
        /// Answers `Measure`.
        105 Measured {
            /// GPU of the slice.
            lane: Lane,
            /// Bytes that NVML reports for the process, without managed memory; `None` without NVML, or if NVML does
            /// not know the process.
            used: Option<Bytes>,
        }
        /// Answers `Open`.
        106 Origin {
            /// A running process of this container shared it: the memory is charged already.
            ours: bool,
        }
        /// The request broke a rule; the connection ends.
        104 Rejected {
            /// Which rule.
            why: Rejection,
        }
    }
}

/// A broken rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// An invalid frame, or one out of order.
    Protocol,
    /// A version that the daemon does not support.
    Version,
    /// The container has too many processes.
    TooManyClients,
    /// A lane the slice does not have.
    NoSuchLane,
    /// More was released than granted, or more claimed than the cap.
    Overdrawn,
    /// The peer does not belong to this socket's container.
    NotYours,
}

field_as!(Rejection as u16, |r| *r as u16 + 1, |raw| match raw {
    1 => Some(Rejection::Protocol),
    2 => Some(Rejection::Version),
    3 => Some(Rejection::TooManyClients),
    4 => Some(Rejection::NoSuchLane),
    5 => Some(Rejection::Overdrawn),
    6 => Some(Rejection::NotYours),
    _ => None,
});
