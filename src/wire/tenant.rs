//! What a process in a slice and the daemon say to each other on the container's own socket.
//!
//! The process attaches once and keeps the connection for life; if it loses it, it attaches anew with what it
//! holds, and its end refunds everything. It asks for memory *credit* before the driver is asked for memory, mostly
//! far more than one allocation's worth, so that most allocations need no round trip. NVML's library has a connection
//! of its own in the same process, through which it only looks.
//! With `Attached` come three descriptors, in this order: the container's page (read-only, sealed),
//! the process's own page, and the doorbell (an eventfd the process rings when its claims change).

use crate::frame::{Field, FrameError, Reader, Writer, field_as, messages};
use crate::ids::{ClientId, Lane};
use crate::limits::ACCOUNTS_MAX;
use crate::units::Bytes;

/// A digest of a shareable handle's bytes. Handles are not secret, and telling of one that is not
/// one's own only makes one's own container pay for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleKey(pub u64);

field_as!(HandleKey as u64, |key| key.0, |raw| Some(HandleKey(raw)));

/// The name of an object of the driver's kernel side, of its owner's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName(pub u32);

field_as!(ObjectName as u32, |name| name.0, |raw| Some(ObjectName(
    raw
)));

messages! {
    /// From a process to the daemon.
    Request {
        /// First frame of a connection. Idempotent per connection: a second one is refused.
        1 Attach {
            /// What the process holds per lane, credit included: zeros at its start, its books after it lost
            /// its connection. Believed as far as it was granted; more must fit below the cap.
            held: [Bytes; ACCOUNTS_MAX],
        }
        /// First frame of a connection through which a process only looks at its container, answered as `Attach`
        /// is. Another connection may hold memory for the same process, so it takes over nothing,
        /// and is granted nothing.
        10 Look {}
        /// Asks for credit: at least `need`, gladly up to `wish`. Not idempotent.
        2 Reserve {
            /// GPU of the slice.
            lane: Lane,
            /// The least that is of use.
            need: Bytes,
            /// What would save further round trips; at least `need`.
            wish: Bytes,
        }
        /// Gives credit back; no answer.
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
            /// Perhaps nothing; at most what the process was granted.
            bytes: Bytes,
        }
        /// Tells of memory that the process lets others open, by a digest of the handle it gave out.
        6 Share {
            /// Of the handle's bytes.
            key: HandleKey,
        }
        /// Asks whether a process of this container shared this handle.
        7 Open {
            /// Of the handle's bytes.
            key: HandleKey,
        }
        /// Tells of a channel group in which kernels of this process run, for the daemon to stop them
        /// there. No answer; a wrong one stops nothing.
        8 Group {
            /// GPU of the slice.
            lane: Lane,
            /// The process's number for the open file through which it was made.
            fd: u32,
            /// That file's client.
            client: ObjectName,
            /// The group.
            group: ObjectName,
            /// Its GPU, in that client's tree.
            subdevice: ObjectName,
        }
        /// A group is no more, or not to be used any more. No answer.
        9 GroupGone {
            /// As it was told.
            client: ObjectName,
            /// As it was told.
            group: ObjectName,
        }
        /// Asks what the driver itself says that this process has of a GPU, now: to be sent when a
        /// context was made, or anything else whose price only the driver knows.
        5 Measure {
            /// GPU of the slice.
            lane: Lane,
        }
    }
}

messages! {
    /// From the daemon to a process.
    Reply {
        /// The process is known; three descriptors travel with this frame.
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
            /// How much.
            bytes: Bytes,
        }
        /// The cap is reached: the allocation is out of memory.
        103 Refused {
            /// GPU of the slice.
            lane: Lane,
            /// What was needed.
            need: Bytes,
            /// What is left under the cap.
            left: Bytes,
        }
        /// Answers `Measure`.
        105 Measured {
            /// GPU of the slice.
            lane: Lane,
            /// What NVML shows for the process, managed memory not included; `None` where there is no
            /// NVML, or it does not know the process.
            used: Option<Bytes>,
        }
        /// Answers `Open`.
        106 Origin {
            /// It did, and still lives: the memory is charged already.
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
    /// Unreadable frame, or one out of order.
    Protocol,
    /// A version the daemon does not speak.
    Version,
    /// The container has too many processes.
    TooManyClients,
    /// A lane the slice does not have.
    NoSuchLane,
    /// More was released than granted, or more claimed than the cap.
    Overdrawn,
    /// The peer is not of the container whose socket this is.
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
