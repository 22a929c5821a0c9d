//! Memory of other APIs.

use super::{CAP, slice, steps};
use crate::suite::Injection;

pub fn external_memory_is_charged_until_its_last_mapping_is_freed(injection: Injection) {
    let slice = slice(injection);
    let lines = steps(
        &slice,
        &[
            "external:0x10000001",
            "external:0x8000000",
            "info",
            "within:1",
            "within:1",
            "info", // not charged again
            "unexternal:1",
            "free:2",
            "info",
            "free:2",
            "free:3",
            "info",
            "unexternal:1",
            "external:0x8000000",
            "within:4",
            "destroy", // ends both
            "ctx:0",
            "info",
        ],
    );
    let (all, half) = (format!("info 0 {CAP} {CAP}"), format!("info 0 {} {CAP}", CAP / 2));
    assert_eq!(lines[0], "external 2 0 0");
    for at in [2, 5, 8] {
        assert_eq!(lines[at], half, "{at}: {lines:?}");
    }
    assert_eq!((lines[9].as_str(), lines[12].as_str()), ("free 1 0 0", "unexternal 1 0 0"));
    assert_eq!((&lines[11], &lines[17]), (&all, &all));
}

pub fn an_import_of_own_memory_is_charged_once(injection: Injection) {
    let slice = slice(injection);
    let lines = steps(
        &slice,
        &[
            "create:0x8000000:1",
            "export:0",
            "external:0x8000000:1",
            "close:1", // consumed and closed by the driver
            "info",
            "release:0",
            "within:2",
            "unexternal:2",
            "info",
            "free:3",
            "info",
        ],
    );
    let half = format!("info 0 {} {CAP}", CAP / 2);
    assert_eq!((&lines[4], &lines[8]), (&half, &half), "{lines:?}");
    assert_eq!(lines[10], format!("info 0 {CAP} {CAP}"), "{lines:?}");
}
