//! Each kind of reference to physical memory.

use super::bound::Place;
use super::tiles::Region;
use super::*;
use gpuslice_nvabi::types::{CUarrayMapInfo, c_void};
use std::io::{PipeReader, pipe};
use std::os::fd::AsRawFd;

const CHARGE: Charge = Charge { lane: Lane(2), bytes: 2 << 20 };

/// An open file with a stamp of its own.
fn open_file() -> PipeReader {
    pipe().expect("a pipe").0
}

fn create(table: &mut PhysicalTable, handle: u64) {
    let allocation = table.begin(Some(CHARGE));
    assert_eq!(table.create(Name::Handle(handle), 0, allocation), []);
}

fn release(table: &mut PhysicalTable, name: Name) -> Vec<Charge> {
    let allocation = table.remove(name).map(|(allocation, _)| allocation);
    table.drop_and_look(allocation)
}

fn map(table: &mut PhysicalTable, address: u64, handle: u64) {
    let allocation = table.refer(Name::Handle(handle)).expect("ours");
    assert_eq!(table.map(address, 0x100, allocation), None);
}

fn unmap(table: &mut PhysicalTable, address: u64, bytes: u64) -> Vec<Charge> {
    let gone = table.unmap(address, bytes);
    table.drop_and_look(gone.allocations())
}

#[test]
fn released_but_mapped_is_still_charged() {
    let mut table = PhysicalTable::default();
    create(&mut table, 7);
    map(&mut table, 0x1000, 7);
    assert_eq!(release(&mut table, Name::Handle(7)), []);
    assert_eq!(unmap(&mut table, 0x1000, 0xff), [], "not the whole of it");
    assert_eq!(unmap(&mut table, 0x1000, 0x100), [CHARGE]);
    assert_eq!(unmap(&mut table, 0x1000, 0x100), []);
}

#[test]
fn a_retained_handle_keeps_the_charge() {
    let mut table = PhysicalTable::default();
    create(&mut table, 7);
    map(&mut table, 0x1000, 7);
    assert_eq!(release(&mut table, Name::Handle(7)), []);
    assert_eq!(table.refer_at(0x1100), None, "one past the end");
    let allocation = table.refer_at(0x10ff).expect("mapped there");
    assert_eq!(table.add(Name::Handle(8), 0, allocation), None);
    assert_eq!(unmap(&mut table, 0x1000, 0x100), []);
    assert_eq!(release(&mut table, Name::Handle(8)), [CHARGE]);
    assert_eq!(release(&mut table, Name::Handle(8)), []);
}

#[test]
fn one_unmap_may_cover_many_mappings_and_be_refused() {
    let mut table = PhysicalTable::default();
    create(&mut table, 7);
    for page in 0..4 {
        map(&mut table, 0x1000 + page * 0x100, 7);
    }
    assert_eq!(release(&mut table, Name::Handle(7)), []);
    let gone = table.unmap(0x1000, 0x400);
    table.restore(gone);
    assert_eq!(unmap(&mut table, 0x1100, 0x300), []);
    assert_eq!(unmap(&mut table, 0x1000, 0x100), [CHARGE]);
}

#[test]
fn unknown_names_are_not_charged() {
    let mut table = PhysicalTable::default();
    assert_eq!(table.refer(Name::Handle(99)), None);
    assert_eq!(release(&mut table, Name::Handle(99)), []);
    assert_eq!(unmap(&mut table, 0, u64::MAX), []);
    assert_eq!(table.refer_within(0, u64::MAX), []);
}

#[test]
fn a_reused_handle_is_another_memory() {
    let mut table = PhysicalTable::default();
    create(&mut table, 7);
    map(&mut table, 0x1000, 7);
    let second = table.begin(Some(CHARGE));
    let gone = table.create(Name::Handle(7), 0, second);
    assert_eq!(table.drop_references(gone), [], "the first is still mapped");
    let other = table.refer(Name::Handle(7)).expect("ours");
    let gone = table.map(0x1000, 0x100, other);
    assert_eq!(table.drop_references(gone), [CHARGE], "and now it is not");
}

#[test]
fn an_import_under_a_known_handle_is_one_more_reference() {
    let mut table = PhysicalTable::default();
    create(&mut table, 7);
    let stranger = table.begin(None);
    let dropped = table.add(Name::Handle(7), 0, stranger);
    assert_eq!(dropped, Some(stranger));
    assert_eq!(table.drop_references(dropped), []);
    assert_eq!(release(&mut table, Name::Handle(7)), []);
    assert_eq!(release(&mut table, Name::Handle(7)), [CHARGE]);
}

#[test]
fn a_descriptor_holds_until_it_is_closed() {
    let mut table = PhysicalTable::default();
    create(&mut table, 7);
    let file = open_file();
    let number = file.as_raw_fd();
    let counted = table.refer(Name::Handle(7)).expect("ours");
    assert_eq!(table.export(number, vec![counted]), []);
    assert_eq!(release(&mut table, Name::Handle(7)), []);
    assert_eq!(table.look(), []);
    // The same process imports it again.
    let again = table.refer_exported(number).expect("exported here");
    assert_eq!(table.add(Name::Handle(9), 0, again), None);
    // Another file may get the number; it is no descriptor of the memory.
    drop(file);
    let other = open_file();
    assert_eq!(table.refer_exported(other.as_raw_fd()), None);
    assert_eq!(table.look(), []);
    assert_eq!(release(&mut table, Name::Handle(9)), [CHARGE]);
}

#[test]
fn a_copy_of_a_descriptor_is_the_same_memory() {
    let mut table = PhysicalTable::default();
    create(&mut table, 7);
    let file = open_file();
    let counted = table.refer(Name::Handle(7)).expect("ours");
    assert_eq!(table.export(file.as_raw_fd(), vec![counted]), []);
    let copy = file.try_clone().expect("a copy");
    // Some sandboxes forbid the comparison.
    let told = crate::daemon::sys::same_file(copy.as_raw_fd(), file.as_raw_fd());
    let again = table.refer_exported(copy.as_raw_fd());
    assert_eq!(again, told.then_some(counted));
    assert_eq!(table.drop_references(again), []);
    assert_eq!(table.refer_exported(open_file().as_raw_fd()), None);
    drop(file);
    assert_eq!(release(&mut table, Name::Handle(7)), [CHARGE]);
}

#[test]
fn a_descriptor_whose_number_is_exported_again_was_closed() {
    let mut table = PhysicalTable::default();
    let file = open_file();
    for handle in [7, 8] {
        create(&mut table, handle);
    }
    let first = table.refer(Name::Handle(7)).expect("ours");
    assert_eq!(table.export(file.as_raw_fd(), vec![first]), []);
    assert_eq!(release(&mut table, Name::Handle(7)), []);
    let second = table.refer(Name::Handle(8)).expect("ours");
    let gone = table.export(file.as_raw_fd(), vec![second]);
    assert_eq!(table.drop_references(gone), [CHARGE]);
    assert_eq!(release(&mut table, Name::Handle(8)), []);
}

#[test]
fn closed_descriptors_are_removed_without_a_request() {
    let mut table = PhysicalTable::default();
    create(&mut table, 7);
    let (mut most, mut others) = (0, Vec::new());
    for _ in 0..200 {
        let file = open_file();
        let counted = table.refer(Name::Handle(7)).expect("ours");
        let gone = table.export(file.as_raw_fd(), vec![counted]);
        assert_eq!(table.drop_references(gone), []);
        most = most.max(table.exports.remembered());
        // Another file takes the number, so that no export yields it again.
        drop(file);
        others.push(open_file());
    }
    assert!((32..=64).contains(&most), "{most} at once");
    assert_eq!(release(&mut table, Name::Handle(7)), [CHARGE]);
}

#[test]
fn an_export_that_cannot_be_revoked_is_kept_once() {
    let mut table = PhysicalTable::default();
    create(&mut table, 7);
    for expect_dropped in [false, true] {
        let counted = table.refer(Name::Handle(7)).expect("ours");
        let dropped = table.keep(counted);
        assert_eq!(dropped.is_some(), expect_dropped);
        assert_eq!(table.drop_references(dropped), []);
    }
    assert_eq!(release(&mut table, Name::Handle(7)), []);
    assert_eq!(table.entries.len(), 1);
}

#[test]
fn an_object_holds_bound_memory_until_its_own_end() {
    let mut table = PhysicalTable::default();
    create(&mut table, 7);
    let object = table.begin(None);
    assert_eq!(table.create(Name::Handle(20), 0, object), []);
    map(&mut table, 0x9000, 20);
    let place = |lane, offset| Place { lane, offset, bytes: 0x100 };
    for offset in [0, 0x100] {
        let counted = table.refer(Name::Handle(7)).expect("ours");
        table.bind(Name::Handle(20), place(None, offset), counted);
    }
    assert_eq!(release(&mut table, Name::Handle(7)), []);
    let elsewhere = table.unbind(Name::Handle(20), place(Some(Lane(1)), 0));
    assert_eq!(elsewhere.len(), 0, "that is another device's part");
    let refused = table.unbind(Name::Handle(20), place(Some(Lane(2)), 0));
    assert_eq!(refused.len(), 1);
    table.rebind(Name::Handle(20), refused);
    let gone = table.unbind(Name::Handle(20), place(Some(Lane(2)), 0));
    assert_eq!(table.drop_references(bound::allocations(gone)), []);
    assert_eq!(release(&mut table, Name::Handle(20)), [], "still mapped");
    assert_eq!(unmap(&mut table, 0x9000, 0x100), [CHARGE]);
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
fn a_tile_holds_memory_until_it_is_unmapped_or_the_array_is_destroyed() {
    let mut table = PhysicalTable::default();
    create(&mut table, 7);
    for (array, level) in [(1, 0), (1, 1), (2, 0)] {
        let counted = table.refer(Name::Handle(7)).expect("ours");
        table.map_tile(region(array, level), 5, counted);
    }
    assert_eq!(release(&mut table, Name::Handle(7)), []);
    assert_eq!(table.unmap_tile(region(1, 2)), [], "nothing mapped there");
    let gone = table.unmap_tile(region(1, 1));
    assert_eq!((gone.len(), table.drop_references(gone)), (1, vec![]));
    let refused = table.take_tiles(1);
    table.restore_tiles(refused);
    let gone = table.take_tiles(1);
    assert_eq!(table.drop_references(tiles::allocations(gone)), []);
    assert_eq!(table.take_tiles(1).len(), 0);
    // The other array ends with its context.
    let closed = table.close(5);
    table.reopen(closed);
    let closed = table.close(5);
    assert_eq!(table.drop_references(closed.allocations()), [CHARGE]);
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
fn a_context_ends_its_own_names() {
    let mut table = PhysicalTable::default();
    let (opened, external) = (Name::Opened(0x7000), Name::External(0x7000));
    let first = table.begin(Some(CHARGE));
    assert_eq!(table.create(opened, 1, first), []);
    assert_eq!(table.add(opened, 1, first), None, "opened a second time");
    assert_eq!(table.count(first), Some(first));
    let second = table.begin(Some(CHARGE));
    assert_eq!(table.create(external, 2, second), []);
    let closed = table.close(1);
    assert_eq!(table.drop_references(closed.allocations()), [CHARGE]);
    assert_eq!(release(&mut table, opened), []);
    assert_eq!(release(&mut table, external), [CHARGE]);
    create(&mut table, 7);
    let closed = table.close(0);
    assert_eq!(closed.allocations().count(), 0, "that is no context");
}
