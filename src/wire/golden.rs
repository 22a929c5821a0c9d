//! The wire layout, frozen: a change here needs a new [`crate::limits::WIRE_VERSION`].

mod tenant;

use crate::admin::{Admission, Answer, Command, Denial, MemoryAsk, RequestSource};
use crate::frame::{FrameError, HEADER_BYTES, Message, RequestId, decode, encode};
use crate::history::{EventKind, History, NO_UID};
use crate::ids::{ClientId, ContainerId, GpuUuid, Lane};
use crate::limits::{ACCOUNTS_MAX, FRAME_BYTES_MAX};
use crate::owner::{ClaimId, Owner};
use crate::page::{
    CLIENT_PAGE_MAGIC, CONTAINER_PAGE_MAGIC, ClientFamilies, ClientLane, ClientPage, ContainerLane,
    ContainerPage, PAGE_VERSION,
};
use crate::policy::{Change, Class, Gangs, Policy};
use crate::samples::{SAMPLES_OF_FRAME, Sample, Samples};
use crate::snapshot::Snapshot;
use crate::tenant::{Rejection, Reply, Request};
use crate::text::{Name, Selector, Text};
use crate::turns::{TURNS_OF_FRAME, TurnKind, TurnRow, Turns};
use crate::units::{Bytes, Percent, Weight};
use crate::usage::{USAGE_SLOTS, USAGE_TABLE_MAGIC, USAGE_VERSION, UsageSlot, UsageTable};
use std::vec::Vec;

fn bytes_of<M: Message>(message: &M) -> Vec<u8> {
    let mut buffer = [0u8; FRAME_BYTES_MAX];
    let len = encode(RequestId(7), message, &mut buffer).expect("fits");
    buffer[..len].to_vec()
}

#[test]
fn enumerations_have_these_numbers() {
    let policies = ["fair", "preemptive", "weighted", "fixed", "soft", "native"];
    assert_eq!(Policy::ALL.map(Policy::name), policies);
    assert_eq!(RequestSource::ALL.map(RequestSource::name), ["annotations", "cgpu", "nvidia"]);
    let classes = Class::ALL.map(|class| (class.number(), class));
    assert_eq!(classes, [(1, Class::High), (0, Class::Normal), (2, Class::BestEffort)]);
    assert_eq!((Denial::Protocol as u8, Denial::NoSuchSlice as u8), (0, 7));
}

#[test]
fn reserve_has_these_bytes() {
    let frame = bytes_of(&Request::Reserve { lane: Lane(3), need: Bytes(0x0102), wish: Bytes(5) });
    let expected = [
        b'G', b'S', b'L', b'1', 2, 0, 2, 0, 17, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0,
        0, // head
        3, 2, 1, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(frame, expected);
}

/// An event, and the request for those after the third.
#[test]
fn events_have_these_bytes() {
    let entry = History::Entry {
        sequence: 4,
        unix_ns: 0x0102,
        kind: EventKind::MemoryRefused,
        container: Text::new("web-1").unwrap(),
        name: Name::new("web").unwrap(),
        gpu: GpuUuid([9; 16]),
        pid: 0x0506,
        uid: NO_UID,
        login_uid: 0x0708,
        count: 3,
        amounts: [7, 8],
        text: Text::new("no").unwrap(),
    };
    let frame = bytes_of(&entry);
    let mut expected = std::vec![0; 519];
    let mut put = |at: usize, bytes: &[u8]| expected[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[4]);
    put(8, &[2, 1]);
    put(16, &[5, 5, 0]);
    put(19, b"web-1");
    put(147, &[3, 0]);
    put(149, b"web");
    put(213, &[9; 16]);
    put(229, &[6, 5, 0, 0, 255, 255, 255, 255, 8, 7, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 8]);
    put(261, &[2, 0]);
    put(263, b"no");
    assert_eq!(frame[HEADER_BYTES..], expected[..]);
    assert_eq!((frame[6], frame[7]), (0xf5, 1), "501");
    assert_eq!(decode(&frame), Ok((RequestId(7), entry)));
    let frame = bytes_of(&Command::Events { after: 3 });
    assert_eq!(frame[HEADER_BYTES..], [3, 0, 0, 0, 0, 0, 0, 0]);
    let kinds = EventKind::ALL.map(EventKind::name);
    assert_eq!((kinds[0], kinds[4], kinds[10]), ("daemon-started", "memory-refused", "policy-set"));
    assert_eq!(kinds[11..15], ["gpu-failed", "gpu-recovered", "suspended", "resumed"]);
    let later =
        ["limit-changed", "memory-wanted", "over-cap", "frozen", "thawed", "killed", "not-moved"];
    assert_eq!(kinds[15..], later);
}

/// A frame with one sample, and the request for those after an instant.
#[test]
fn samples_have_these_bytes() {
    let sample = Sample {
        series: 1,
        end_ns: 2,
        length_us: 3,
        due_ppm: 4,
        got_us: 5,
        running_us: 6,
        handover_us: 7,
        limited_us: 8,
        gang_us: 9,
        idle_us: 10,
        suspended_us: 11,
        absent_us: 12,
        wait_us: [13, 14, 15, 16, 17],
        memory: Bytes(18),
    };
    let mut rows = [Sample::default(); SAMPLES_OF_FRAME];
    rows[0] = sample;
    let message = Samples::Rows { count: 1, rows };
    let frame = bytes_of(&message);
    let mut expected = std::vec![1u8, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
    (3..=17u8).for_each(|n| expected.extend([n, 0, 0, 0]));
    expected.extend([18, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(frame[HEADER_BYTES..HEADER_BYTES + 84], expected[..]);
    assert!(frame[HEADER_BYTES + 84..].iter().all(|byte| *byte == 0));
    assert_eq!((frame[6], frame[7]), (0x5a, 2), "602");
    assert_eq!(decode(&frame), Ok((RequestId(7), message)));
    let frame = bytes_of(&Command::Samples { after_ns: 3 });
    assert_eq!(frame[HEADER_BYTES..], [3, 0, 0, 0, 0, 0, 0, 0]);
}

/// A frame with one stretch of a recording, and the request for those after the third.
#[test]
fn turns_have_these_bytes() {
    let kind = TurnKind::Overrun;
    let mut rows = [TurnRow::default(); TURNS_OF_FRAME];
    rows[0] = TurnRow { track: 1, kind, from_ns: 2, to_ns: 0x0304, gpu_ns: 5 };
    let message = Turns::Rows { count: 1, rows };
    let frame = bytes_of(&message);
    let expected = [
        1, 0, 0, 0, // count
        1, 0, 0, 0, 3, 2, 0, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 1, // the second row, which is unused
    ];
    assert_eq!(frame[HEADER_BYTES..HEADER_BYTES + expected.len()], expected);
    assert_eq!(decode(&frame), Ok((RequestId(7), message)));
    let frame = bytes_of(&Command::Record { for_ns: 0x0102, after: 3 });
    assert_eq!(frame[HEADER_BYTES..], [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(TurnKind::ALL.map(TurnKind::name), ["turn", "drain", "overrun", "open"]);
}

/// Kind and payload length of every message; a new length or number is a new version.
#[test]
fn every_kind_has_this_length() {
    let lengths = |f: fn(u16) -> Option<usize>| -> Vec<(u16, usize)> {
        (0..=u16::MAX).filter_map(|kind| f(kind).map(|len| (kind, len))).collect()
    };
    let of_requests = [136, 17, 9, 13, 1, 8, 8, 17, 8, 0, 136];
    assert_eq!(lengths(Request::payload_bytes), (1..).zip(of_requests).collect::<Vec<_>>());
    assert_eq!(
        lengths(Reply::payload_bytes),
        [(101, 5), (102, 9), (103, 17), (104, 2), (105, 10), (106, 1)]
    );
    assert_eq!(
        lengths(Snapshot::payload_bytes),
        [
            (201, 107),
            (202, 437),
            (203, 8),
            (204, 788),
            (205, 32),
            (206, 581),
            (207, 139),
            (208, 163),
            (209, 28),
            (210, 130),
            (211, 163),
            (212, 130),
            (220, 24),
            (221, 37),
            (222, 186),
            (223, 9),
            (224, 522),
            (225, 166)
        ]
    );
    assert_eq!(
        lengths(Command::payload_bytes),
        [
            (301, 2054),
            (302, 130),
            (303, 0),
            (304, 147),
            (305, 675),
            (306, 143),
            (307, 2055),
            (308, 8),
            (309, 849),
            (310, 8),
            (311, 16),
            (312, 130),
            (313, 130),
            (314, 130),
            (315, 147),
            (320, 0)
        ]
    );
    assert_eq!(lengths(History::payload_bytes), [(501, 519), (502, 28)]);
    assert_eq!(lengths(Samples::payload_bytes), [(601, 224), (602, 3844), (603, 28)]);
    assert_eq!(lengths(Turns::payload_bytes), [(611, 216), (612, 3716), (613, 36)]);
    assert_eq!(
        lengths(Answer::payload_bytes),
        [(401, 1806), (402, 0), (403, 516), (404, 16), (405, 0)]
    );
}

/// Every field of the shared pages; an old shim reads a new daemon's page by these.
#[test]
fn pages_have_these_offsets() {
    macro_rules! offsets {
        ($type:ty: $($field:ident = $at:literal),*) => {
            $(assert_eq!(core::mem::offset_of!($type, $field), $at, stringify!($field));)*
        };
    }
    offsets!(ContainerPage: magic = 0, version = 8, lanes = 12, epoch = 16, heartbeat_ns = 24,
             gated = 32, futex = 36, hard = 40, foreign = 44, clients = 48, stop = 52,
             suspended = 56, lane = 64, untracked = 1152);
    offsets!(ContainerLane: uuid_high = 0, uuid_low = 8, cap = 16, reserved = 24,
             turn_end_ns = 32, turn = 40, mode = 44, window_us = 48, idle_us = 52, recall = 56,
             context_kib = 60);
    offsets!(ClientPage: magic = 0, version = 8, slot = 12, shared = 16, lane = 64, families = 1152);
    offsets!(ClientFamilies: bytes = 0, contexts = 40);
    offsets!(UsageTable: magic = 0, version = 8, slots = 12, slot = 64);
    assert_eq!((size_of::<UsageSlot>(), USAGE_SLOTS), (192, 512));
    offsets!(ClientLane: held = 0, launches = 8, denied = 16, began_ns = 24, unseen = 32,
             runnable = 40, active = 44, drained = 48, gate = 52, drained_ns = 56);
    assert_eq!((CONTAINER_PAGE_MAGIC, CLIENT_PAGE_MAGIC), (0x31544e4f434c5347, 0x31544e4c434c5347));
    assert_eq!((USAGE_TABLE_MAGIC, PAGE_VERSION, USAGE_VERSION), (0x45474153554c5347, 1, 1));
}

fn admit() -> Command {
    Command::Admit {
        asked: Admission {
            container: ContainerId::new("web-1").unwrap(),
            name: Name::new("web").unwrap(),
            gpus: Selector::new("0,1").unwrap(),
            whole: Selector::new("2").unwrap(),
            memory: MemoryAsk::Ratio { part: 4, whole: 15 },
            memory_limit: Some(MemoryAsk::Exactly(Bytes(6))),
            weight: None,
            share: Percent::new(30).ok(),
            share_limit: Percent::new(60).ok(),
            class: Class::High,
            gang: Gangs::Never,
            pinned: Some(Bytes(5)),
            pid: 77,
            owner: Owner { pod: Text::new("web-0").unwrap(), ..Owner::default() },
        },
    }
}

#[test]
fn messages_round_trip() {
    let requests = [
        Request::Attach { held: [Bytes(9); ACCOUNTS_MAX] },
        Request::Look {},
        Request::Release { lane: Lane(0), bytes: Bytes(u64::MAX) },
    ];
    for request in requests {
        assert_eq!(decode(&bytes_of(&request)), Ok((RequestId(7), request)));
    }
    let client = ClientId { slot: 3, generation: 9 };
    let replies =
        [Reply::Attached { client, lanes: 2 }, Reply::Rejected { why: Rejection::NotYours }];
    for reply in replies {
        assert_eq!(decode(&bytes_of(&reply)), Ok((RequestId(7), reply)));
    }
    assert_eq!(decode(&bytes_of(&admit())), Ok((RequestId(7), admit())));
    let claims = [ClaimId::new("c-1").ok(), None, None, None];
    let container = ContainerId::new("web-1").unwrap();
    let join = Command::Join { container, claims, owner: Owner::default(), pid: 77 };
    assert_eq!(decode(&bytes_of(&join)), Ok((RequestId(7), join)));
    for (share, share_limit) in
        [(Change::Keep, Change::None), (Change::None, Change::to(Percent::new(100).ok()))]
    {
        let container = ContainerId::new("web-1").unwrap();
        let weight = Change::to(Weight::new(9).ok());
        let retune = Command::Retune { container, weight, share, share_limit, class: None };
        assert_eq!(decode(&bytes_of(&retune)), Ok((RequestId(7), retune)));
    }
    for limit in [None, Some(MemoryAsk::Exactly(Bytes(9)))] {
        let container = ContainerId::new("web-1").unwrap();
        let relimit = Command::Relimit { container, lane: Lane(1), limit };
        assert_eq!(decode(&bytes_of(&relimit)), Ok((RequestId(7), relimit)));
    }
    let denied = Answer::Denied { why: Denial::Memory, text: Text::new("no").unwrap() };
    assert_eq!(decode(&bytes_of(&denied)), Ok((RequestId(7), denied)));
}

/// Every cut and every one-byte change of a frame decodes to something or to an error, and what it
/// decodes to encodes to the same bytes again.
#[test]
fn the_decoder_is_total() {
    let frame = bytes_of(&admit());
    for end in 0..frame.len() {
        assert!(decode::<Command>(&frame[..end]).is_err());
    }
    for at in 0..frame.len() {
        for flip in [1u8, 0x80, 0xff] {
            let mut bad = frame.clone();
            bad[at] ^= flip;
            if let Ok((id, message)) = decode::<Command>(&bad) {
                let mut buffer = [0u8; FRAME_BYTES_MAX];
                let len = encode(id, &message, &mut buffer).expect("fits");
                assert_eq!(buffer[..len], bad, "byte {at}");
            }
        }
    }
}

#[test]
fn refusals_say_why() {
    let frame = bytes_of(&Request::Release { lane: Lane(0), bytes: Bytes(1) });
    let with = |at: usize, value: u8| {
        let mut bad = frame.clone();
        bad[at] = value;
        decode::<Request>(&bad).map(|_| ())
    };
    assert_eq!(with(0, 0), Err(FrameError::Magic));
    assert_eq!(with(4, 9), Err(FrameError::Version(9)));
    assert_eq!(with(6, 99), Err(FrameError::Kind(99)));
    assert_eq!(with(8, 8), Err(FrameError::Length));
    assert_eq!(with(HEADER_BYTES, 17), Err(FrameError::Field));
    assert_eq!(decode::<Reply>(&frame).map(|_| ()), Err(FrameError::Kind(3)));
}
