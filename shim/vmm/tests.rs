//! One way of holding memory after the other.

use super::bound::Place;
use super::tiles::Region;
use super::*;
use gpuslice_nvabi::types::{CUarrayMapInfo, c_void};
use std::io::{PipeReader, pipe};
use std::os::fd::AsRawFd;

const CHARGE: Charge = Charge {
    lane: Lane(2),
    bytes: 2 << 20,
};

/// An open file that is like no other.
fn open_file() -> PipeReader {
    pipe().expect("a pipe").0
}

fn create(pieces: &mut Pieces, handle: u64) {
    let piece = pieces.begin(Some(CHARGE));
    assert_eq!(pieces.create(Name::Handle(handle), 0, piece), []);
}

fn release(pieces: &mut Pieces, name: Name) -> Vec<Charge> {
    let piece = pieces.remove(name).map(|(piece, _)| piece);
    pieces.drop_and_look(piece)
}

fn map(pieces: &mut Pieces, address: u64, handle: u64) {
    let piece = pieces.refer(Name::Handle(handle)).expect("ours");
    assert_eq!(pieces.map(address, 0x100, piece), None);
}

fn unmap(pieces: &mut Pieces, address: u64, bytes: u64) -> Vec<Charge> {
    let gone = pieces.unmap(address, bytes);
    pieces.drop_and_look(gone.pieces())
}

#[test]
fn released_but_mapped_is_still_charged() {
    let mut pieces = Pieces::default();
    create(&mut pieces, 7);
    map(&mut pieces, 0x1000, 7);
    assert_eq!(release(&mut pieces, Name::Handle(7)), []);
    assert_eq!(unmap(&mut pieces, 0x1000, 0xff), [], "not the whole of it");
    assert_eq!(unmap(&mut pieces, 0x1000, 0x100), [CHARGE]);
    assert_eq!(unmap(&mut pieces, 0x1000, 0x100), []);
}

#[test]
fn a_retained_handle_keeps_the_charge() {
    let mut pieces = Pieces::default();
    create(&mut pieces, 7);
    map(&mut pieces, 0x1000, 7);
    assert_eq!(release(&mut pieces, Name::Handle(7)), []);
    assert_eq!(pieces.refer_at(0x1100), None, "one past the end");
    let piece = pieces.refer_at(0x10ff).expect("mapped there");
    assert_eq!(pieces.add(Name::Handle(8), 0, piece), None);
    assert_eq!(unmap(&mut pieces, 0x1000, 0x100), []);
    assert_eq!(release(&mut pieces, Name::Handle(8)), [CHARGE]);
    assert_eq!(release(&mut pieces, Name::Handle(8)), []);
}

#[test]
fn one_unmap_may_cover_many_mappings_and_be_refused() {
    let mut pieces = Pieces::default();
    create(&mut pieces, 7);
    for page in 0..4 {
        map(&mut pieces, 0x1000 + page * 0x100, 7);
    }
    assert_eq!(release(&mut pieces, Name::Handle(7)), []);
    let gone = pieces.unmap(0x1000, 0x400);
    pieces.restore(gone);
    assert_eq!(unmap(&mut pieces, 0x1100, 0x300), []);
    assert_eq!(unmap(&mut pieces, 0x1000, 0x100), [CHARGE]);
}

#[test]
fn strangers_are_not_charged() {
    let mut pieces = Pieces::default();
    assert_eq!(pieces.refer(Name::Handle(99)), None);
    assert_eq!(release(&mut pieces, Name::Handle(99)), []);
    assert_eq!(unmap(&mut pieces, 0, u64::MAX), []);
    assert_eq!(pieces.refer_within(0, u64::MAX), []);
}

#[test]
fn a_number_used_again_is_another_memory() {
    let mut pieces = Pieces::default();
    create(&mut pieces, 7);
    map(&mut pieces, 0x1000, 7);
    let second = pieces.begin(Some(CHARGE));
    let gone = pieces.create(Name::Handle(7), 0, second);
    assert_eq!(
        pieces.drop_references(gone),
        [],
        "the first is still mapped"
    );
    let other = pieces.refer(Name::Handle(7)).expect("ours");
    let gone = pieces.map(0x1000, 0x100, other);
    assert_eq!(pieces.drop_references(gone), [CHARGE], "and now it is not");
}

#[test]
fn an_import_under_a_handle_that_is_known_is_one_more_reference() {
    let mut pieces = Pieces::default();
    create(&mut pieces, 7);
    let stranger = pieces.begin(None);
    let dropped = pieces.add(Name::Handle(7), 0, stranger);
    assert_eq!(dropped, Some(stranger));
    assert_eq!(pieces.drop_references(dropped), []);
    assert_eq!(release(&mut pieces, Name::Handle(7)), []);
    assert_eq!(release(&mut pieces, Name::Handle(7)), [CHARGE]);
}

#[test]
fn a_descriptor_holds_until_it_is_closed() {
    let mut pieces = Pieces::default();
    create(&mut pieces, 7);
    let file = open_file();
    let number = file.as_raw_fd();
    let counted = pieces.refer(Name::Handle(7)).expect("ours");
    assert_eq!(pieces.export(number, vec![counted]), []);
    assert_eq!(release(&mut pieces, Name::Handle(7)), []);
    assert_eq!(pieces.look(), []);
    // The same process takes it back.
    let again = pieces.refer_exported(number).expect("exported here");
    assert_eq!(pieces.add(Name::Handle(9), 0, again), None);
    // Another file may get the number; that is no descriptor of the memory.
    drop(file);
    let other = open_file();
    assert_eq!(pieces.refer_exported(other.as_raw_fd()), None);
    assert_eq!(pieces.look(), []);
    assert_eq!(release(&mut pieces, Name::Handle(9)), [CHARGE]);
}

#[test]
fn a_copy_of_a_descriptor_is_the_same_memory() {
    let mut pieces = Pieces::default();
    create(&mut pieces, 7);
    let file = open_file();
    let counted = pieces.refer(Name::Handle(7)).expect("ours");
    assert_eq!(pieces.export(file.as_raw_fd(), vec![counted]), []);
    let copy = file.try_clone().expect("a copy");
    // Some sandboxes do not let anybody ask.
    let told = crate::link::sys::same_file(copy.as_raw_fd(), file.as_raw_fd());
    let again = pieces.refer_exported(copy.as_raw_fd());
    assert_eq!(again, told.then_some(counted));
    assert_eq!(pieces.drop_references(again), []);
    assert_eq!(pieces.refer_exported(open_file().as_raw_fd()), None);
    drop(file);
    assert_eq!(release(&mut pieces, Name::Handle(7)), [CHARGE]);
}

#[test]
fn a_number_given_away_again_was_closed() {
    let mut pieces = Pieces::default();
    let file = open_file();
    for handle in [7, 8] {
        create(&mut pieces, handle);
    }
    let first = pieces.refer(Name::Handle(7)).expect("ours");
    assert_eq!(pieces.export(file.as_raw_fd(), vec![first]), []);
    assert_eq!(release(&mut pieces, Name::Handle(7)), []);
    let second = pieces.refer(Name::Handle(8)).expect("ours");
    let gone = pieces.export(file.as_raw_fd(), vec![second]);
    assert_eq!(pieces.drop_references(gone), [CHARGE]);
    assert_eq!(release(&mut pieces, Name::Handle(8)), []);
}

#[test]
fn descriptors_that_are_closed_are_forgotten_without_being_asked() {
    let mut pieces = Pieces::default();
    create(&mut pieces, 7);
    let (mut most, mut others) = (0, Vec::new());
    for _ in 0..200 {
        let file = open_file();
        let counted = pieces.refer(Name::Handle(7)).expect("ours");
        let gone = pieces.export(file.as_raw_fd(), vec![counted]);
        assert_eq!(pieces.drop_references(gone), []);
        most = most.max(pieces.exports.remembered());
        // Somebody else's file gets the number next, so that no export gives it away again.
        drop(file);
        others.push(open_file());
    }
    assert!((32..=64).contains(&most), "{most} at once");
    assert_eq!(release(&mut pieces, Name::Handle(7)), [CHARGE]);
}

#[test]
fn what_was_given_away_for_ever_is_kept_once() {
    let mut pieces = Pieces::default();
    create(&mut pieces, 7);
    for expect_dropped in [false, true] {
        let counted = pieces.refer(Name::Handle(7)).expect("ours");
        let dropped = pieces.keep(counted);
        assert_eq!(dropped.is_some(), expect_dropped);
        assert_eq!(pieces.drop_references(dropped), []);
    }
    assert_eq!(release(&mut pieces, Name::Handle(7)), []);
    assert_eq!(pieces.alive.len(), 1);
}

#[test]
fn an_object_holds_what_is_bound_until_its_own_end() {
    let mut pieces = Pieces::default();
    create(&mut pieces, 7);
    let object = pieces.begin(None);
    assert_eq!(pieces.create(Name::Handle(20), 0, object), []);
    map(&mut pieces, 0x9000, 20);
    let place = |lane, offset| Place {
        lane,
        offset,
        bytes: 0x100,
    };
    for offset in [0, 0x100] {
        let counted = pieces.refer(Name::Handle(7)).expect("ours");
        pieces.bind(Name::Handle(20), place(None, offset), counted);
    }
    assert_eq!(release(&mut pieces, Name::Handle(7)), []);
    let elsewhere = pieces.unbind(Name::Handle(20), place(Some(Lane(1)), 0));
    assert_eq!(elsewhere.len(), 0, "that is another device's part");
    let refused = pieces.unbind(Name::Handle(20), place(Some(Lane(2)), 0));
    assert_eq!(refused.len(), 1);
    pieces.rebind(Name::Handle(20), refused);
    let gone = pieces.unbind(Name::Handle(20), place(Some(Lane(2)), 0));
    assert_eq!(pieces.drop_references(bound::pieces(gone)), []);
    assert_eq!(release(&mut pieces, Name::Handle(20)), [], "still mapped");
    assert_eq!(unmap(&mut pieces, 0x9000, 0x100), [CHARGE]);
}

fn region(array: usize, level: u64) -> Region {
    Region::of(&CUarrayMapInfo {
        resource_type: 0,
        resource: array as *mut c_void,
        subresource_type: 0,
        subresource: [level, 0, 0, 0],
        mem_operation_type: 1,
        mem_handle_type: 0,
        mem_handle: 0,
        offset: 0,
        device_bit_mask: 1,
        flags: 0,
        reserved: [0; 2],
    })
}

#[test]
fn a_tile_holds_until_unmapped_or_the_array_is_gone() {
    let mut pieces = Pieces::default();
    create(&mut pieces, 7);
    for (array, level) in [(1, 0), (1, 1), (2, 0)] {
        let counted = pieces.refer(Name::Handle(7)).expect("ours");
        pieces.map_tile(region(array, level), 5, counted);
    }
    assert_eq!(release(&mut pieces, Name::Handle(7)), []);
    assert_eq!(pieces.unmap_tile(region(1, 2)), [], "nothing mapped there");
    let gone = pieces.unmap_tile(region(1, 1));
    assert_eq!((gone.len(), pieces.drop_references(gone)), (1, vec![]));
    let refused = pieces.take_tiles(1);
    pieces.restore_tiles(refused);
    let gone = pieces.take_tiles(1);
    assert_eq!(pieces.drop_references(tiles::pieces(gone)), []);
    assert_eq!(pieces.take_tiles(1).len(), 0);
    // The other array goes with its context.
    let closed = pieces.close(5);
    pieces.reopen(closed);
    let closed = pieces.close(5);
    assert_eq!(pieces.drop_references(closed.pieces()), [CHARGE]);
}

#[test]
fn padding_is_no_part_of_a_region() {
    let tail = |padding: u64| {
        let mut step = CUarrayMapInfo {
            resource_type: 1,
            resource: 9 as *mut c_void,
            subresource_type: 1,
            subresource: [padding << 32 | 3, 64, 128, padding],
            mem_operation_type: 1,
            mem_handle_type: 0,
            mem_handle: 0,
            offset: 0,
            device_bit_mask: 1,
            flags: 0,
            reserved: [0; 2],
        };
        let same = Region::of(&step);
        step.subresource[1] += 64;
        (same, Region::of(&step))
    };
    assert_eq!(tail(0).0, tail(77).0);
    assert_ne!(tail(0).0, tail(0).1);
}

#[test]
fn a_context_takes_the_names_of_its_own_with_it() {
    let mut pieces = Pieces::default();
    let (opened, external) = (Name::Opened(0x7000), Name::External(0x7000));
    let first = pieces.begin(Some(CHARGE));
    assert_eq!(pieces.create(opened, 1, first), []);
    assert_eq!(pieces.add(opened, 1, first), None, "opened a second time");
    assert_eq!(pieces.count(first), Some(first));
    let second = pieces.begin(Some(CHARGE));
    assert_eq!(pieces.create(external, 2, second), []);
    let closed = pieces.close(1);
    assert_eq!(pieces.drop_references(closed.pieces()), [CHARGE]);
    assert_eq!(release(&mut pieces, opened), []);
    assert_eq!(release(&mut pieces, external), [CHARGE]);
    create(&mut pieces, 7);
    let closed = pieces.close(0);
    assert_eq!(closed.pieces().count(), 0, "that is no context");
}
