//! Frames: one fixed-size little-endian message per SOCK_SEQPACKET datagram.
//!
//! ```text
//! 0        4         6      8         12          16            24
//! | magic  | version | kind | len u32 | reserved  | request u64 | payload (len bytes) ...
//! ```
//! The decoder is total: any bytes yield a message or a [`FrameError`], never a panic. A frame whose length does not
//! match its kind is refused as a whole. No frame of a container's process carries a pointer, a path in the
//! container, a pid or the sender's identity: the socket identifies the sender.

use crate::ids::{ClientId, ContainerId, GpuUuid, Lane, NvmlIndex};
use crate::limits::{ACCOUNTS_MAX, FRAME_BYTES_MAX, WIRE_VERSION, WIRE_VERSION_MIN};
use crate::text::Text;
use crate::units::{Bytes, Percent, Weight};
use core::fmt;

/// First four bytes of every frame: "GSL1".
pub const MAGIC: u32 = u32::from_le_bytes(*b"GSL1");
/// Bytes of the header.
pub const HEADER_BYTES: usize = 24;

/// Matches an answer to its request; chosen by the requester, copied into the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestId(pub u64);

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// Shorter than a header, or payload length and kind disagree.
    Length,
    /// Does not start with the magic.
    Magic,
    /// This version, which the build does not support.
    Version(u16),
    /// This kind, which the socket does not accept.
    Kind(u16),
    /// A field holds a value outside its type.
    Field,
    /// The message does not fit in the buffer given for encoding.
    Space,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Length => f.write_str("the frame's length does not fit its kind"),
            FrameError::Magic => f.write_str("not a gpuslice frame"),
            FrameError::Version(v) => write!(
                f,
                "the peer speaks version {v}, this build {WIRE_VERSION_MIN} to {WIRE_VERSION}; \
                 restart the older of the two"
            ),
            FrameError::Kind(kind) => write!(f, "unknown message kind {kind}"),
            FrameError::Field => f.write_str("a field has an invalid value"),
            FrameError::Space => f.write_str("the message does not fit in a frame"),
        }
    }
}

impl core::error::Error for FrameError {}

/// Reads fields from the front of a payload.
#[derive(Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], FrameError> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(FrameError::Length)?;
        self.0 = rest;
        Ok(head)
    }
}

/// Writes fields to the front of a buffer.
#[derive(Debug)]
pub struct Writer<'a> {
    buffer: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        let end = self.at + bytes.len();
        self.buffer.get_mut(self.at..end).ok_or(FrameError::Space)?.copy_from_slice(bytes);
        self.at = end;
        Ok(())
    }
}

/// A type with one fixed-size encoding.
pub trait Field: Sized {
    /// Encoded bytes.
    const BYTES: usize;
    /// # Errors
    /// [`FrameError::Space`] when the buffer is full.
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError>;
    /// # Errors
    /// [`FrameError::Length`] or [`FrameError::Field`].
    fn get(r: &mut Reader<'_>) -> Result<Self, FrameError>;
}

macro_rules! integer_field {
    ($($int:ty),*) => {$(
        impl Field for $int {
            const BYTES: usize = size_of::<$int>();
            fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
                w.put(&self.to_le_bytes())
            }
            fn get(r: &mut Reader<'_>) -> Result<$int, FrameError> {
                let bytes = r.take(Self::BYTES)?;
                bytes.try_into().map(<$int>::from_le_bytes).map_err(|_| FrameError::Length)
            }
        }
    )*};
}
integer_field!(u8, u16, u32, u64);

/// Implements [`Field`] for a type through another: `to` encodes, `from` decodes and may refuse.
macro_rules! field_as {
    ($type:ty as $raw:ty, $to:expr, $from:expr) => {
        impl Field for $type {
            const BYTES: usize = <$raw as Field>::BYTES;
            fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
                let to: fn(&$type) -> $raw = $to;
                to(self).put(w)
            }
            fn get(r: &mut Reader<'_>) -> Result<$type, FrameError> {
                let from: fn($raw) -> Option<$type> = $from;
                from(<$raw>::get(r)?).ok_or(FrameError::Field)
            }
        }
    };
}
pub(crate) use field_as;

/// Declares a structure and implements [`Field`] for it: its fields, one after the other, each described once.
macro_rules! record {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident : $type:ty,)* }) => {
        $(#[$doc])*
        pub struct $name { $($(#[$fdoc])* pub $field: $type,)* }

        impl $crate::frame::Field for $name {
            const BYTES: usize = 0 $(+ <$type as $crate::frame::Field>::BYTES)*;
            fn put(&self, w: &mut $crate::frame::Writer<'_>) -> Result<(), $crate::frame::FrameError> {
                $($crate::frame::Field::put(&self.$field, w)?;)*
                Ok(())
            }
            fn get(r: &mut $crate::frame::Reader<'_>) -> Result<$name, $crate::frame::FrameError> {
                Ok($name { $($field: $crate::frame::Field::get(r)?,)* })
            }
        }
    };
}
pub(crate) use record;

/// Declares an enum without data and implements [`Field`] for it by each variant's number.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident as $raw:ty { $($(#[$vdoc:meta])* $number:literal $variant:ident,)* }) => {
        $(#[$doc])*
        pub enum $name { $($(#[$vdoc])* $variant = $number,)* }

        $crate::frame::field_as!($name as $raw, |value| *value as $raw, |raw| match raw {
            $($number => Some($name::$variant),)*
            _ => None,
        });
    };
}
pub(crate) use numbered;

field_as!(bool as u8, |b| u8::from(*b), |raw| match raw {
    0 => Some(false),
    1 => Some(true),
    _ => None,
});
field_as!(Bytes as u64, |b| b.0, |raw| Some(Bytes(raw)));
field_as!(Option<Percent> as u32, |p| p.map_or(0, Percent::get), |raw| match raw {
    0 => Some(None),
    _ => Percent::new(raw).ok().map(Some),
});
field_as!(Option<Weight> as u32, |w| w.map_or(0, Weight::get), |raw| match raw {
    0 => Some(None),
    _ => Weight::new(raw).ok().map(Some),
});
field_as!(NvmlIndex as u32, |i| i.0, |raw| Some(NvmlIndex(raw)));
field_as!(Lane as u8, |l| l.0, |raw| ((raw as usize) < ACCOUNTS_MAX).then_some(Lane(raw)));
field_as!(ClientId as u32, |c| u32::from(c.generation) << 16 | u32::from(c.slot), |raw| Some(
    ClientId { slot: raw as u16, generation: (raw >> 16) as u16 }
));

impl Field for Option<Bytes> {
    const BYTES: usize = 9;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        self.is_some().put(w)?;
        self.unwrap_or(Bytes::ZERO).put(w)
    }
    fn get(r: &mut Reader<'_>) -> Result<Option<Bytes>, FrameError> {
        match (bool::get(r)?, Bytes::get(r)?) {
            (true, bytes) => Ok(Some(bytes)),
            (false, Bytes::ZERO) => Ok(None),
            (false, _) => Err(FrameError::Field),
        }
    }
}

impl<const N: usize> Field for Text<N> {
    const BYTES: usize = 2 + N;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        let text = self.as_str().as_bytes();
        (text.len() as u16).put(w)?;
        w.put(text)?;
        w.put(&[0u8; N][text.len()..])
    }
    fn get(r: &mut Reader<'_>) -> Result<Text<N>, FrameError> {
        let len = usize::from(u16::get(r)?);
        let bytes = r.take(N)?;
        let text = core::str::from_utf8(bytes.get(..len).ok_or(FrameError::Field)?);
        let zero = bytes[len..].iter().all(|&b| b == 0);
        match (text, zero) {
            (Ok(text), true) => Text::new(text).map_err(|_| FrameError::Field),
            _ => Err(FrameError::Field),
        }
    }
}

impl Field for ContainerId {
    const BYTES: usize = <Text<{ crate::limits::CONTAINER_ID_BYTES_MAX }> as Field>::BYTES;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        self.text().put(w)
    }
    fn get(r: &mut Reader<'_>) -> Result<ContainerId, FrameError> {
        let text = Text::<{ crate::limits::CONTAINER_ID_BYTES_MAX }>::get(r)?;
        ContainerId::new(text.as_str()).map_err(|_| FrameError::Field)
    }
}

impl Field for GpuUuid {
    const BYTES: usize = 16;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        w.put(&self.0)
    }
    fn get(r: &mut Reader<'_>) -> Result<GpuUuid, FrameError> {
        r.take(16)?.try_into().map(GpuUuid).map_err(|_| FrameError::Length)
    }
}

impl<T: Field + Copy + Default, const N: usize> Field for [T; N] {
    const BYTES: usize = N * T::BYTES;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        self.iter().try_for_each(|item| item.put(w))
    }
    fn get(r: &mut Reader<'_>) -> Result<[T; N], FrameError> {
        let mut all = [T::default(); N];
        for item in &mut all {
            *item = T::get(r)?;
        }
        Ok(all)
    }
}

/// A set of messages that one kind of socket carries in one direction.
pub trait Message: Sized {
    /// The message's kind number.
    fn kind(&self) -> u16;
    /// # Errors
    /// [`FrameError::Space`].
    fn put_payload(&self, w: &mut Writer<'_>) -> Result<(), FrameError>;
    /// Payload length of a kind, or `None` for a kind that is not in the set.
    fn payload_bytes(kind: u16) -> Option<usize>;
    /// # Errors
    /// [`FrameError::Kind`], [`FrameError::Field`] or [`FrameError::Length`].
    fn get_payload(kind: u16, r: &mut Reader<'_>) -> Result<Self, FrameError>;
}

/// Writes `message` as a frame; returns the frame's length in bytes.
///
/// # Errors
/// [`FrameError::Space`] when `buffer` is shorter than the frame.
pub fn encode<M: Message>(
    id: RequestId,
    message: &M,
    buffer: &mut [u8],
) -> Result<usize, FrameError> {
    encode_in(WIRE_VERSION, id, message, buffer)
}

/// The same for a peer of another version.
///
/// # Errors
/// As [`encode`].
pub fn encode_in<M: Message>(
    version: u16,
    id: RequestId,
    message: &M,
    buffer: &mut [u8],
) -> Result<usize, FrameError> {
    let len = M::payload_bytes(message.kind()).ok_or(FrameError::Kind(message.kind()))?;
    let mut w = Writer { buffer, at: 0 };
    MAGIC.put(&mut w)?;
    version.put(&mut w)?;
    message.kind().put(&mut w)?;
    (len as u32).put(&mut w)?;
    0u32.put(&mut w)?;
    id.0.put(&mut w)?;
    message.put_payload(&mut w)?;
    Ok(w.at)
}

/// The version that a frame claims to have; that of this build for one without.
#[must_use]
pub fn version_of(frame: &[u8]) -> u16 {
    let bytes = frame.get(4..6).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(WIRE_VERSION, u16::from_le_bytes)
}

/// Reads one frame, which must fill `frame` exactly.
///
/// # Errors
/// [`FrameError`]; nothing of a refused frame is used.
pub fn decode<M: Message>(frame: &[u8]) -> Result<(RequestId, M), FrameError> {
    if frame.len() > FRAME_BYTES_MAX {
        return Err(FrameError::Length);
    }
    let mut r = Reader(frame);
    if u32::get(&mut r)? != MAGIC {
        return Err(FrameError::Magic);
    }
    let version = u16::get(&mut r)?;
    if !(WIRE_VERSION_MIN..=WIRE_VERSION).contains(&version) {
        return Err(FrameError::Version(version));
    }
    let (kind, len) = (u16::get(&mut r)?, u32::get(&mut r)? as usize);
    if u32::get(&mut r)? != 0 {
        return Err(FrameError::Field);
    }
    let id = RequestId(u64::get(&mut r)?);
    let expected = M::payload_bytes(kind).ok_or(FrameError::Kind(kind))?;
    if len != expected || r.0.len() != len {
        return Err(FrameError::Length);
    }
    M::get_payload(kind, &mut r).map(|message| (id, message))
}

/// Declares an enum of messages, each with its kind number and named fields, and derives
/// [`Message`]; a frame is described once.
macro_rules! messages {
    ($(#[$doc:meta])* $set:ident { $($(#[$vdoc:meta])* $kind:literal $name:ident {
        $($(#[$fdoc:meta])* $field:ident : $type:ty,)*
    })* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant)] // one on the stack at a time
        pub enum $set { $($(#[$vdoc])* $name { $($(#[$fdoc])* $field: $type,)* },)* }

        impl $crate::frame::Message for $set {
            fn kind(&self) -> u16 {
                match self { $($set::$name { .. } => $kind,)* }
            }
            fn put_payload(&self, w: &mut $crate::frame::Writer<'_>)
                -> Result<(), $crate::frame::FrameError> {

                match self { $($set::$name { $($field,)* } => { $($crate::frame::Field::put($field, w)?;)* })* }
                let _ = w;
                Ok(())
            }
            fn payload_bytes(kind: u16) -> Option<usize> {
                match kind {
                    $($kind => Some(0 $(+ <$type as $crate::frame::Field>::BYTES)*),)*
                    _ => None,
                }
            }
            fn get_payload(kind: u16, r: &mut $crate::frame::Reader<'_>)
                -> Result<$set, $crate::frame::FrameError> {

                let _ = &r;
                match kind {
                    $($kind => Ok($set::$name { $($field: <$type as $crate::frame::Field>::get(r)?,)* }),)*
                    _ => Err($crate::frame::FrameError::Kind(kind)),
                }
            }
        }

        $(const _: () = assert!(
            $crate::frame::HEADER_BYTES $(+ <$type as $crate::frame::Field>::BYTES)*
                <= $crate::limits::FRAME_BYTES_MAX
        );)*
    };
}
pub(crate) use messages;
