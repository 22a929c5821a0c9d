//! The connection to the daemon `gpusliced`, and everything that it brings: facts and claims on two shared
//! pages, and memory credit.
//!
//! A process attaches once, and again when the daemon has restarted. Between the two its memory credit lasts,
//! its pages stay mapped, and requests wait for a limited time. This room knows lanes and bytes, and no
//! object of the driver.
//!
//! * [`session`] is the lasting part: socket, pages, accounts; [`conn`] is one connection, which may break;
//! * [`credit`] counts the bytes of one lane, [`reservation`] takes them before the driver is called;
//! * [`credit_return`] returns unused bytes, `measure` asks for the memory that the driver took for itself;
//! * [`place`] finds the socket, [`clock`] converts to the daemon's clock, [`sys`] has the system calls.

pub mod clock;
pub mod conn;
pub mod credit;
pub mod credit_return;
#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod golden;
mod measure;
pub mod place;
pub mod reservation;
pub mod session;
pub mod sys;

pub use reservation::{OutOfMemory, Reservation};
pub use session::{Callbacks, Purpose, Session};
