//! Waits as a snapshot shows them: behind which containers a container waited for a GPU, and why.

use crate::frame::{Field, FrameError, Reader, Writer, field_as};
use crate::ids::ContainerId;
use crate::limits::CONTAINER_ID_BYTES_MAX;
use crate::text::Text;

/// Containers that a row of waits names.
pub const WAITS_SHOWN: usize = 3;

/// Why a container waited behind another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitCause {
    /// The other container had its turn.
    #[default]
    Queue,
    /// The other container is of a higher class and had its turn.
    HigherClass,
    /// The turn was closed, and its work had not drained in the time that an honest drain takes.
    LongKernel,
    /// The same, until the wait for it ended after `drain_max`.
    NoDrain,
    /// The GPU was reserved for the other container, which waited for other GPUs of its gang.
    Gang,
}

impl WaitCause {
    /// All causes.
    pub const ALL: [WaitCause; 5] = [
        WaitCause::Queue,
        WaitCause::HigherClass,
        WaitCause::LongKernel,
        WaitCause::NoDrain,
        WaitCause::Gang,
    ];

    /// Its name in JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            WaitCause::Queue => "queue",
            WaitCause::HigherClass => "higher-class",
            WaitCause::LongKernel => "long-kernel",
            WaitCause::NoDrain => "no-drain",
            WaitCause::Gang => "gang",
        }
    }
}

field_as!(WaitCause as u8, |cause| *cause as u8 + 1, |raw| {
    let mut all = WaitCause::ALL.into_iter();
    all.find(|it| *it as u8 + 1 == raw)
});

/// Time behind one other container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitBehind {
    /// The other container; `None` for an unused row.
    pub container: Option<ContainerId>,
    /// Time behind it, ns.
    pub total_ns: u64,
    /// The longest single wait, ns.
    pub longest_ns: u64,
    /// The cause of the longest one.
    pub cause: WaitCause,
    /// `total_ns` by cause, in the order of [`WaitCause::ALL`], ns.
    pub by_cause_ns: [u64; WaitCause::ALL.len()],
}

impl Field for WaitBehind {
    const BYTES: usize =
        ContainerId::BYTES + 2 * u64::BYTES + WaitCause::BYTES + WaitCause::ALL.len() * u64::BYTES;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        self.container.map_or(Text::EMPTY, |id| id.text()).put(w)?;
        self.total_ns.put(w)?;
        self.longest_ns.put(w)?;
        self.cause.put(w)?;
        self.by_cause_ns.put(w)
    }
    fn get(r: &mut Reader<'_>) -> Result<WaitBehind, FrameError> {
        let name = Text::<CONTAINER_ID_BYTES_MAX>::get(r)?;
        let container = match name.is_empty() {
            true => None,
            false => Some(ContainerId::new(name.as_str()).map_err(|_| FrameError::Field)?),
        };
        let (total_ns, longest_ns) = (u64::get(r)?, u64::get(r)?);
        let (cause, by_cause_ns) = (WaitCause::get(r)?, Field::get(r)?);
        Ok(WaitBehind { container, total_ns, longest_ns, cause, by_cause_ns })
    }
}
