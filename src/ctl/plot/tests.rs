//! The figures of lines, tables and pictures, from samples that are known.

use super::chart::{self, GpuFacts};
use super::csv::csv;
use super::{json_of, lines};
use crate::past::tests::past;
use crate::table::tests::slice;
use crate::table::{Row, View};
use crate::top::picture::assert_picture;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::snapshot::SuspensionState;
use gpuslice_wire::units::Bytes;
use unicode_width::UnicodeWidthStr;

const GIB: u64 = 1 << 30;

fn gpus() -> [GpuFacts; 2] {
    [1, 2].map(|n| GpuFacts {
        uuid: GpuUuid([n; 16]),
        called: format!("gpu {}, NVIDIA H200", n - 1),
        memory: 16 * GIB,
    })
}

#[test]
fn lines_have_the_means() {
    let told = lines(&past(40), &gpus(), (40, usize::MAX));
    assert_eq!(told[0], "gpu 0, NVIDIA H200");
    assert!(told[1].ends_with("   GOT   DUE  WAIT  MEMORY"), "{told:#?}");
    assert!(told[2].starts_with("  train  \u{2586}"), "{told:#?}");
    assert!(told[2].ends_with("  60 %  50 %  40 %  1GiB"), "{told:#?}");
    assert!(told[3].ends_with("  34 %  50 %  66 %  2GiB"), "{told:#?}");
    assert!(told[6].ends_with("  40 % 100 %   1 %  3GiB"), "{told:#?}");
    assert_eq!(lines(&past(0), &gpus(), (40, 80)), ["no slice has used a GPU in this time"]);
}

/// Memory of a suspended slice is on the host, and is told beside the 0B on the GPU.
#[test]
fn a_suspended_slice_is_marked() {
    let mut past = past(40);
    let web = past.series[&2].clone();
    let rows =
        vec![Row { gpu: web.gpu, reserved: Bytes(3 * GIB), ..slice("web", 1, None, true, 0) }];
    let suspensions = [("web".to_owned(), SuspensionState::Suspended)].into();
    let view = View { rows, suspensions, ..View::default() };
    past.note_suspended(&view);
    past.series.get_mut(&2).and_then(|it| it.samples.back_mut()).expect("one").memory = Bytes::ZERO;
    for most in [60, 80, usize::MAX] {
        let told = lines(&past, &gpus(), (40, most));
        assert!(told[3].ends_with("  34 %  50 %  66 %  0B, 3GiB suspended"), "{told:#?}");
        assert!(told[2].ends_with("  1GiB") && told[3].width() <= most, "{told:#?}");
    }
    let json = json_of(&past, &view);
    let away: Vec<_> = (0..3).map(|at| &json["series"][at]["memory_suspended"]).collect();
    assert_eq!(away, [&0.into(), &(3 * GIB).into(), &serde_json::Value::from(0)]);
}

/// The line is shorter on a narrow terminal, then the name; the figures stay.
#[test]
fn lines_fit_the_terminal() {
    let mut past = past(40);
    for most in [20, 46, 60, 80, 200] {
        let told = lines(&past, &gpus(), (40, most));
        assert!(told.iter().all(|line| line.width() <= most), "{most}: {told:#?}");
    }
    past.series.get_mut(&2).expect("web").name = "a-name-of-thirty-two-characters-".to_owned();
    let told = lines(&past, &gpus(), (40, 80));
    assert!(told.iter().all(|line| line.width() <= 80), "{told:#?}");
    assert!(told[2].starts_with("  a-name-of-thirty-two-characters-  \u{2583}"), "{told:#?}");
    assert!(told[2].ends_with("  34 %  50 %  66 %  2GiB"), "{told:#?}");
    let told = lines(&past, &gpus(), (40, 46));
    assert!(
        told[2].starts_with("  a-na") && told[2].ends_with("  34 %  50 %  66 %  2GiB"),
        "{told:#?}"
    );
}

#[test]
fn a_table_has_each_sample() {
    let mut past = past(2);
    past.series.get_mut(&2).expect("web").name = "=cmd,\"x\"".to_owned();
    let told = csv(&past, |gpu| u32::from(gpu.0[0]) - 1);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 1 + 6);
    assert!(lines[0].starts_with("time,container,name,gpu,gpu_uuid,interval_s,due,got_s,"));
    assert!(lines[0].ends_with(",wait_queue_s,wait_higher_class_s,wait_long_kernel_s,wait_no_drain_s,wait_gang_s,memory_bytes"));
    let columns = lines[0].split(',').count();
    assert_eq!(
        lines[2],
        "2027-01-15T08:16:41.000Z,batch,batch,1,GPU-02020202-0202-0202-0202-020202020202,1.000000,1.000000,0.400000,0.400000,\
         0.010000,0.000000,0.000000,0.590000,0.000000,0.000000,0.000000,0.000000,0.000000,0.000000,0.000000,3221225472"
    );
    assert_eq!(lines[2].split(',').count(), columns);
    assert!(
        lines[1].starts_with("2027-01-15T08:16:41.000Z,web,\"'=cmd,\"\"x\"\"\",0,"),
        "{}",
        lines[1]
    );
}

/// The area of a band at a known height: got 45 % on top of 50 % is 190 px * (1 - 0.95) below the upper edge.
#[test]
fn a_picture_has_the_figures_at_their_heights() {
    let told = chart::node(&past(20), &gpus(), 20.5);
    assert!(told.contains("gpu 0, NVIDIA H200: part of the time that each slice got"), "{told}");
    assert!(told.contains("got 60 %, due 50 %, waited 40 %"), "{told}");
    // the first second's train: 0.70 - 0.07, so 190 * 0.37 below the upper edge at 68
    assert!(told.contains(&format!(r#"<polygon points="64,{}"#, 68.0 + 190.0 * 0.37)), "{told}");
    assert!(told.contains("-10 s</text>") && told.contains(">now</text>"), "{told}");
    assert_eq!(told.matches("<polygon").count(), 6, "three slices' time and memory");
    let mut one = past(20);
    one.narrow(u64::MAX, Some("web"));
    let told = chart::slice(&one, &gpus(), 20.5);
    assert!(told.contains("due 50 %") && told.contains(">running</text>"), "{told}");
    assert!(!told.contains("own limit") && told.contains(">queue</text>"), "{told}");
}

#[test]
fn pictures_of_the_last_minutes() {
    assert_picture("plot.svg", &chart::node(&past(600), &gpus(), 600.0));
    let mut one = past(600);
    one.narrow(u64::MAX, Some("web"));
    assert_picture("plot-slice.svg", &chart::slice(&one, &gpus(), 600.0));
}
