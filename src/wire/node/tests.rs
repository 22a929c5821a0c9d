//! The layout of the node socket's frames, frozen, and its decoder under hostile input.

use super::*;
use crate::frame::{Message, RequestId, decode, encode};
use crate::limits::FRAME_BYTES_MAX;
use std::vec::Vec;

fn bytes_of<M: Message>(message: &M) -> Vec<u8> {
    let mut buffer = [0u8; FRAME_BYTES_MAX];
    let len = encode(RequestId(7), message, &mut buffer).expect("fits");
    buffer[..len].to_vec()
}

fn reservation() -> Reservation {
    Reservation {
        claim: ClaimId::new("c-1").expect("a claim id"),
        owner: Owner {
            namespace: Text::new("default").expect("short"),
            pod: Text::new("web-0").expect("short"),
            uid: Text::new("6f1c9c1e-1111-4222-8333-944455566677").expect("short"),
            container: Text::new("main").expect("short"),
        },
        gpus: GpuList::new(&[GpuUuid([1; 16]), GpuUuid([2; 16])]).expect("two"),
        memory: Bytes(3 << 30),
        share: Percent::new(30).ok(),
        share_limit: None,
        weight: Weight::new(2).ok(),
        class: Class::High,
        gang: Gangs::Never,
        pinned: Some(Bytes(5)),
    }
}

fn facts() -> GpuFacts {
    GpuFacts {
        number: 1,
        uuid: GpuUuid([2; 16]),
        index: NvmlIndex(1),
        product: Text::new("NVIDIA H200").expect("short"),
        pci: Text::new("0000:3b:00.0").expect("short"),
        numa: Numa(Some(1)),
        island: Text::new("node-1").expect("short"),
        links: [18; GPUS_MAX],
        near: [40; GPUS_MAX],
        capability: [9, 0],
        driver: Text::new("590.48.01").expect("short"),
        simulated: true,
        health: Health { state: HealthState::Xid, xid: 79, since: 1_700_000_000 },
        total: Bytes(80 << 30),
        promised: Bytes(3 << 30),
        left: Bytes(77 << 30),
        share_promised: 30,
        share_left: 70,
        slices: 1,
        policy: Policy::Soft,
    }
}

fn slice() -> NodeAnswer {
    let Reservation { claim, owner, memory, share, weight, class, .. } = reservation();
    NodeAnswer::Slice {
        slice: claim.slice(),
        claim: Some(claim),
        released: false,
        name: Name::new("web").expect("short"),
        owner,
        gpus: GpuNumbers(3),
        memory,
        reserved: Bytes::ZERO,
        share,
        weight,
        class,
    }
}

fn requests() -> [NodeRequest; 5] {
    [
        NodeRequest::Facts {},
        NodeRequest::List {},
        NodeRequest::Watch {},
        NodeRequest::Reserve { words: reservation() },
        NodeRequest::Release { claim: reservation().claim },
    ]
}

fn answers() -> [NodeAnswer; 9] {
    let claim = reservation().claim;
    let container = ContainerId::new("web-1").expect("an id");
    [
        NodeAnswer::Gpu { gpu: facts() },
        slice(),
        NodeAnswer::Member { claim, container },
        NodeAnswer::End {},
        NodeAnswer::Gone { slice: container },
        NodeAnswer::Left { claim, container },
        NodeAnswer::Reserved { device: Text::new("gpuslice.io/gpu=c-1").expect("short") },
        NodeAnswer::Released { members: 2 },
        NodeAnswer::Denied { why: NodeDenial::ClaimDiffers, text: Text::new("no").expect("short") },
    ]
}

/// Kind and payload length of every message; a new length or number is a new version.
#[test]
fn every_kind_has_this_length() {
    let lengths = |f: fn(u16) -> Option<usize>| -> Vec<(u16, usize)> {
        (0..=u16::MAX).filter_map(|kind| f(kind).map(|len| (kind, len))).collect()
    };
    assert_eq!(
        lengths(NodeRequest::payload_bytes),
        [(701, 0), (702, 0), (703, 0), (704, 805), (705, 66)]
    );
    assert_eq!(
        lengths(NodeAnswer::payload_bytes),
        [
            (801, 390),
            (802, 741),
            (803, 196),
            (804, 0),
            (805, 130),
            (806, 196),
            (807, 130),
            (808, 4),
            (809, 516)
        ]
    );
}

/// Places and numbers of a reservation's fields.
#[test]
fn a_reservation_has_these_bytes() {
    let frame = bytes_of(&NodeRequest::Reserve { words: reservation() });
    assert_eq!(&frame[..8], [b'G', b'S', b'L', b'1', 2, 0, 0xc0, 2]);
    let payload = &frame[crate::frame::HEADER_BYTES..];
    assert_eq!(&payload[..5], [3, 0, b'c', b'-', b'1']);
    assert_eq!(&payload[66..75], b"\x07\0default");
    assert_eq!(&payload[131..138], b"\x05\0web-0");
    assert_eq!(&payload[386..392], b"\x24\x006f1c");
    assert_eq!(&payload[452..458], b"\x04\0main");
    assert_eq!((payload[517], payload[518], payload[534], payload[550]), (2, 1, 2, 0));
    let tail = [
        [0, 0, 0, 0xc0, 0, 0, 0, 0].as_slice(), // memory
        &[30, 0, 0, 0],                         // share
        &[0, 0, 0, 0],                          // limit
        &[2, 0, 0, 0],                          // weight
        &[1, 1],                                // class, gang
        &[1, 5, 0, 0, 0, 0, 0, 0, 0],           // pinned
    ];
    assert_eq!(&payload[774..], tail.concat());
}

#[test]
fn messages_round_trip() {
    for request in requests() {
        assert_eq!(decode(&bytes_of(&request)), Ok((RequestId(7), request)));
    }
    for answer in answers() {
        assert_eq!(decode(&bytes_of(&answer)), Ok((RequestId(7), answer)));
    }
}

/// Every cut and every changed byte of every frame decodes to something or to an error, and what it decodes to
/// encodes to the same bytes again.
#[test]
fn the_decoder_is_total() {
    fn check<M: Message>(frame: &[u8]) {
        for end in 0..frame.len() {
            assert!(decode::<M>(&frame[..end]).is_err());
        }
        let longer = [frame, &[0]].concat();
        assert!(decode::<M>(&longer).is_err());
        for at in 0..frame.len() {
            for flip in [1u8, 0x80, 0xff] {
                let mut bad = frame.to_vec();
                bad[at] ^= flip;
                if let Ok((id, message)) = decode::<M>(&bad) {
                    let mut buffer = [0u8; FRAME_BYTES_MAX];
                    let len = encode(id, &message, &mut buffer).expect("fits");
                    assert_eq!(buffer[..len], bad, "byte {at}");
                }
            }
        }
    }
    requests().iter().for_each(|request| check::<NodeRequest>(&bytes_of(request)));
    answers().iter().for_each(|answer| check::<NodeAnswer>(&bytes_of(answer)));
}

/// Claim ids that the socket must never see are no frames at all.
#[test]
fn hostile_claim_ids_do_not_decode() {
    let frame = bytes_of(&NodeRequest::Release { claim: reservation().claim });
    let id = crate::frame::HEADER_BYTES + 2;
    for bad in [&b"../"[..], b"a/b", b".ab", b"ab-", b"a\0b", b"a\nb", b"\xff\xfe\xfd"] {
        let mut hostile = frame.clone();
        hostile[id..id + 3].copy_from_slice(bad);
        assert!(decode::<NodeRequest>(&hostile).is_err(), "{bad:?}");
    }
    let mut long = frame;
    long[id - 2] = 0xff; // 10 KB cannot be said: a length beyond the field is refused
    long[id - 1] = 0x27;
    assert!(decode::<NodeRequest>(&long).is_err());
}

#[test]
fn lists_of_gpus_are_bounded() {
    assert_eq!(GpuList::new(&[GpuUuid([1; 16]); GPUS_MAX + 1]), None);
    let full = GpuList::new(&[GpuUuid([1; 16]); GPUS_MAX]).expect("all");
    assert_eq!(full.as_slice().len(), GPUS_MAX);
    assert!(GpuNumbers(1 << 15).has(15) && !GpuNumbers(u16::MAX).has(16));
}

/// A node of 8 GPUs and 100 claims with a container each fits in 128 KiB.
#[test]
fn a_full_list_is_bounded() {
    let bytes = |answer: &NodeAnswer| bytes_of(answer).len();
    let [gpu, slice, member, end, ..] = answers().map(|answer| bytes(&answer));
    assert!(8 * gpu + 100 * (slice + member) + end <= 128 << 10);
}
