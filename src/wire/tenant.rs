//! What a process in a slice and the daemon say to each other on the container's own socket.
//!
//! The process attaches once and keeps the connection for life: its end is the process's end, and
//! refunds everything. It asks for memory *credit* before the driver is asked for memory, mostly
//! far more than one allocation's worth, so that most allocations need no round trip.
//! With `Attached` come three descriptors, in this order: the container's page (read-only, sealed),
//! the process's own page, and the doorbell (an eventfd the process rings when its claims change).

use crate::frame::{Field, FrameError, Reader, Writer, field_as, messages};
use crate::ids::{ClientId, Lane};
use crate::limits::LANES_MAX;
use crate::units::Bytes;

messages! {
    /// From a process to the daemon.
    Request {
        /// First frame of a connection. Idempotent per connection: a second one is refused.
        1 Attach {
            /// What the process holds per lane, credit included: zeros at its start, its books
            /// after the daemon came back. Counted against the cap before anybody's new growth.
            held: [Bytes; LANES_MAX],
        }
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
