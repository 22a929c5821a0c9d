//! Fuzz targets: everything that this crate parses.

use crate::admin::{Answer, Command};
use crate::frame::{HEADER_BYTES, Message, RequestId, decode, encode_in, version_of};
use crate::history::History;
use crate::ids::{ContainerId, GpuUuid};
use crate::limits::{FRAME_BYTES_MAX, WIRE_VERSION};
use crate::node::{NodeAnswer, NodeRequest};
use crate::owner::ClaimId;
use crate::policy::{Class, Gangs, Policy};
use crate::samples::Samples;
use crate::select::{GpuRef, GpuSelector};
use crate::snapshot::Snapshot;
use crate::tenant::{Reply, Request};
use crate::text::Name;
use crate::turns::Turns;
use crate::units::{Bytes, Percent, Weight};
use core::fmt::{Debug, Display};
use core::str::FromStr;
use std::string::ToString;
use std::vec::Vec;

/// Decodes a frame as a message of `M`. A message has one encoding: an accepted frame is what it encodes to.
fn read<M: Message + PartialEq + Debug>(frame: &[u8]) {
    let Ok((id, message)) = decode::<M>(frame) else { return };
    let mut buffer = [0; FRAME_BYTES_MAX];
    let len = encode_in(version_of(frame), id, &message, &mut buffer).expect("it was in a frame");
    assert_eq!(&buffer[..len], frame, "{message:?}");
}

/// A frame with a correct head, so that the fuzzer need not find one; `None` for a kind that is not in the set.
fn framed<M: Message>(kind: u16, payload: &[u8]) -> Option<Vec<u8>> {
    let len = M::payload_bytes(kind)?;
    let mut frame = Vec::with_capacity(HEADER_BYTES + len);
    frame.extend(b"GSL1");
    frame.extend(WIRE_VERSION.to_le_bytes());
    frame.extend(kind.to_le_bytes());
    frame.extend((len as u32).to_le_bytes());
    frame.extend([0; 4]);
    frame.extend(RequestId(7).0.to_le_bytes());
    frame.extend(payload.iter().chain(core::iter::repeat(&0)).take(len));
    Some(frame)
}

fn read_both<M: Message + PartialEq + Debug>(bytes: &[u8]) {
    read::<M>(bytes);
    let Some((kind, payload)) = bytes.split_at_checked(2) else { return };
    if let Some(frame) = framed::<M>(u16::from_le_bytes([kind[0], kind[1]]), payload) {
        read::<M>(&frame);
    }
}

#[test]
fn frames_of_a_tenant() {
    gpuslice_fuzz::fuzz!("frames-of-a-tenant", |bytes| {
        read_both::<Request>(bytes);
        read_both::<Reply>(bytes);
    });
}

#[test]
fn frames_of_an_administrator() {
    gpuslice_fuzz::fuzz!("frames-of-an-administrator", |bytes| {
        read_both::<Command>(bytes);
        read_both::<Answer>(bytes);
        read_both::<Snapshot>(bytes);
        read_both::<History>(bytes);
        read_both::<Samples>(bytes);
        read_both::<Turns>(bytes);
    });
}

#[test]
fn frames_of_an_agent() {
    gpuslice_fuzz::fuzz!("frames-of-an-agent", |bytes| {
        read_both::<NodeRequest>(bytes);
        read_both::<NodeAnswer>(bytes);
    });
}

/// What is accepted and printed is accepted again, with the same meaning.
fn printed<T: FromStr + Display + PartialEq + Debug>(text: &str)
where
    T::Err: Display + Debug,
{
    match text.parse::<T>() {
        Ok(value) => assert_eq!(value.to_string().parse::<T>().expect("printed"), value),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

/// `count` times `unit` in wider numbers than the parser's.
fn size(text: &str) -> Option<u128> {
    let units = [("KiB", 10), ("Ki", 10), ("MiB", 20), ("Mi", 20), ("GiB", 30), ("Gi", 30)];
    let units = units.into_iter().chain([("TiB", 40), ("Ti", 40), ("B", 0), ("", 0)]);
    let (count, shift) = units
        .filter_map(|(name, shift)| text.strip_suffix(name).map(|count| (count, shift)))
        .find(|(count, _)| !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit()))?;
    let bytes = (count.len() <= 20).then(|| count.parse::<u128>().ok())?? << shift;
    (bytes <= u64::MAX.into()).then_some(bytes)
}

#[test]
fn words() {
    gpuslice_fuzz::fuzz!("words", |bytes| {
        let Ok(text) = core::str::from_utf8(bytes) else { return };
        assert_eq!(text.parse::<Bytes>().ok().map(|bytes| u128::from(bytes.0)), size(text));
        let number = |text: &str, most| text.parse().ok().filter(|n| (1..=most).contains(n));
        let percent = text.strip_suffix('%').unwrap_or(text);
        assert_eq!(text.parse::<Weight>().ok().map(Weight::get), number(text, 1000));
        assert_eq!(text.parse::<Percent>().ok().map(Percent::get), number(percent, 100));
        printed::<GpuUuid>(text);
        printed::<Policy>(text);
        printed::<Class>(text);
        printed::<Gangs>(text);
    });
}

#[test]
fn names_and_selectors() {
    gpuslice_fuzz::fuzz!("names-and-selectors", |bytes| {
        let Ok(text) = core::str::from_utf8(bytes) else { return };
        let shown = Name::new(text).map(|name| name.as_str().to_string());
        assert!(shown.is_err() || shown.as_deref() == Ok(text));
        // These become names of files.
        if let Ok(id) = ContainerId::new(text) {
            assert!(!id.as_str().contains(['/', '\0']) && ![".", "..", ""].contains(&id.as_str()));
        }
        if let Ok(id) = ClaimId::new(text) {
            assert!(!id.as_str().contains(['/', '\0']) && ![".", "..", ""].contains(&id.as_str()));
        }
        if let Ok(GpuSelector::List(list)) = GpuSelector::parse(text) {
            let all: Vec<GpuRef> = list.into_iter().flatten().collect();
            assert_eq!(all.len(), text.split(',').count());
            assert!(all.iter().enumerate().all(|(at, one)| !all[..at].contains(one)));
        }
    });
}
