//! Every frame between a process and the daemon, in every version that is in use, as bytes that are checked in. A shim
//! stays mapped in a running container while the daemon is replaced, so none of these bytes may change.

use crate::frame::{Message, RequestId, decode, encode_in, version_of};
use crate::ids::{ClientId, Lane};
use crate::limits::{
    ACCOUNTS_MAX, CHANNELS_PER_GROUP_MAX, FRAME_BYTES_MAX, WIRE_VERSION, WIRE_VERSION_MIN,
};
use crate::tenant::{HandleKey, ObjectName, Rejection, Reply, Request};
use crate::units::Bytes;
use core::fmt::Debug;
use std::collections::{BTreeMap, BTreeSet};
use std::string::{String, ToString};
use std::vec::Vec;
use std::{format, vec};

const FRAMES: &str = include_str!("tenant.txt");
/// A different value in each byte.
const ID: RequestId = RequestId(0xa7a6_a5a4_a3a2_a1a0);

/// A number whose bytes all differ, also from those of another `seed`.
fn number(seed: u8) -> u64 {
    u64::from_le_bytes(core::array::from_fn(|byte| seed + byte as u8))
}

fn bytes(seed: u8) -> Bytes {
    Bytes(number(seed))
}

fn channels() -> [ObjectName; CHANNELS_PER_GROUP_MAX] {
    core::array::from_fn(|at| ObjectName(0x4443_0000 + 0x101 * at as u32))
}

fn requests() -> Vec<(&'static str, Request)> {
    let (lane, client, group) = (Lane(3), ObjectName(0x1413_1211), ObjectName(0x2423_2221));
    let subdevice = ObjectName(0x3433_3231);
    let key = HandleKey(number(0x50));
    let held = core::array::from_fn(|account| bytes(1 + 8 * account as u8));
    vec![
        ("attach", Request::Attach { held }),
        ("attach-first", Request::Attach { held: [Bytes::ZERO; ACCOUNTS_MAX] }),
        ("reserve", Request::Reserve { lane, need: bytes(0x10), wish: bytes(0x20) }),
        ("reserve-host", Request::Reserve { lane: Lane::HOST, need: Bytes(1), wish: Bytes(2) }),
        ("release", Request::Release { lane, bytes: bytes(0x30) }),
        ("yield", Request::Yield { lane, recall: 0x0403_0201, bytes: bytes(0x40) }),
        ("measure", Request::Measure { lane }),
        ("share", Request::Share { key }),
        ("open", Request::Open { key }),
        ("group", Request::Group { lane, fd: 0x0807_0605, client, group, subdevice }),
        ("channels", Request::Channels { client, group, channels: channels() }),
        ("group-gone", Request::GroupGone { client, group }),
        ("look", Request::Look {}),
    ]
}

fn replies() -> Vec<(&'static str, Reply)> {
    let (lane, client) = (Lane(5), ClientId { slot: 0x0201, generation: 0x0403 });
    let mut all = vec![
        ("attached", Reply::Attached { client, lanes: 2 }),
        ("reserved", Reply::Reserved { lane, bytes: bytes(0x10) }),
        ("refused", Reply::Refused { lane, need: bytes(0x20), left: bytes(0x30) }),
        ("measured", Reply::Measured { lane, used: Some(bytes(0x40)) }),
        ("measured-unknown", Reply::Measured { lane, used: None }),
        ("origin-ours", Reply::Origin { ours: true }),
        ("origin-foreign", Reply::Origin { ours: false }),
    ];
    let rejections = [
        ("rejected-protocol", Rejection::Protocol),
        ("rejected-version", Rejection::Version),
        ("rejected-too-many-clients", Rejection::TooManyClients),
        ("rejected-no-such-lane", Rejection::NoSuchLane),
        ("rejected-overdrawn", Rejection::Overdrawn),
        ("rejected-not-yours", Rejection::NotYours),
    ];
    all.extend(rejections.map(|(name, why)| (name, Reply::Rejected { why })));
    all
}

/// The checked-in frames by version and name: a line `v1 name`, then indented lines of hexadecimal digits.
fn golden() -> BTreeMap<String, Vec<u8>> {
    let mut frames = BTreeMap::<String, Vec<u8>>::new();
    let mut name = None;
    for line in FRAMES.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some(digits) = line.strip_prefix("  ") else {
            assert_eq!(frames.insert(line.to_string(), Vec::new()), None, "{line} is there twice");
            name = Some(line);
            continue;
        };
        let frame = name.and_then(|name| frames.get_mut(name)).expect("a name is above the bytes");
        for pair in digits.as_bytes().chunks(2) {
            let pair = core::str::from_utf8(pair).expect("digits");
            frame.push(u8::from_str_radix(pair, 16).expect("digits"));
        }
    }
    frames
}

/// A frame as the file shows it.
fn text(frame: &[u8]) -> String {
    let lines = frame.chunks(32).map(|line| {
        let digits: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("  {digits}\n")
    });
    lines.collect()
}

/// Takes the frames of `messages` out of `golden`, and compares each in both directions.
fn compare<M: Message + Clone + PartialEq + Debug>(
    golden: &mut BTreeMap<String, Vec<u8>>,
    messages: &[(&'static str, M)],
) {
    for version in WIRE_VERSION_MIN..=WIRE_VERSION {
        for (name, message) in messages {
            let name = format!("v{version} {name}");
            let mut buffer = [0; FRAME_BYTES_MAX];
            let len = encode_in(version, ID, message, &mut buffer).expect("fits");
            let expected = golden.remove(&name).unwrap_or_default();
            assert_eq!(text(&buffer[..len]), text(&expected), "{name} is encoded differently");
            assert_eq!(decode(&expected), Ok((ID, message.clone())), "{name}");
            assert_eq!(version_of(&expected), version, "{name}");
        }
        let named: BTreeSet<u16> = messages.iter().map(|(_, message)| message.kind()).collect();
        let kinds = (0..=u16::MAX).filter(|kind| M::payload_bytes(*kind).is_some());
        assert_eq!(named, kinds.collect(), "every kind of message has a frame");
    }
}

#[test]
fn every_frame_of_a_process_has_these_bytes() {
    let mut golden = golden();
    compare(&mut golden, &requests());
    compare(&mut golden, &replies());
    let rest: Vec<&String> = golden.keys().collect();
    assert!(rest.is_empty(), "frames of no message or version: {rest:?}");
}
