//! The screen in memory, at the sizes that terminals have, and the keys.

use super::model::{Field, Key, Mode, Model, Order, Processes, Sort};
use super::screen::{Look, draw};
use crate::past::tests::past;
use crate::processes::Process;
use crate::set;
use crate::table::tests::{gpu, slice};
use crate::table::{DaemonState, Gpu, MemoryLimit, Row, View};
use crate::wall_time::WallTime;
use gpuslice_wire::ids::{ContainerId, GpuUuid};
use gpuslice_wire::node::{Health, HealthState};
use gpuslice_wire::policy::{Class, ClassCaps};
use gpuslice_wire::snapshot::SuspensionState;
use gpuslice_wire::units::Bytes;
use gpuslice_wire::waits::{WaitBehind, WaitCause};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;
use std::collections::BTreeMap;
use unicode_width::UnicodeWidthStr;

const S: u64 = 1_000_000_000;
const GIB: u64 = 1 << 30;

/// The account of `web`, which waits behind `train`, of `train`, and of `loader`, which is idle.
fn time(container: &str, at: u64) -> WallTime {
    let (running, waiting, idle) = match container {
        "web" => (at / 10, 9 * at / 10, 0),
        "train" => (9 * at / 10, at / 10, 0),
        _ => (at / 50, 0, 49 * at / 50),
    };
    let mut behind = [WaitBehind::default(); 3];
    if container == "web" {
        behind[0] = WaitBehind {
            container: ContainerId::new("train").ok(),
            total_ns: waiting,
            longest_ns: 3 * S / 2,
            cause: WaitCause::LongKernel,
            by_cause_ns: [0, 0, waiting, 0, 0],
        };
    }
    WallTime {
        container: ContainerId::new(container).expect("an id"),
        gpu: GpuUuid([1; 16]),
        since_ns: 0,
        parts: [
            ("running", running),
            ("waiting", waiting),
            ("handover", 0),
            ("limited", 0),
            ("gang", 0),
            ("idle", idle),
            ("suspended", 0),
            ("absent", 0),
        ],
        behind,
        others_ns: 0,
    }
}

fn view(seconds: u64) -> View {
    let at = seconds * S;
    let row = |name: &str, part: u64, class| Row {
        cap: Bytes(8 * GIB),
        used: Bytes(3 * GIB),
        class,
        holds: u32::from(name == "train"),
        runnable_ns: if name == "loader" { at / 50 } else { at },
        ..slice(name, 1, None, name != "loader", at * part / 100)
    };
    let names = ["web", "train", "loader"];
    View {
        unhealthy: BTreeMap::new(),
        frozen: [].into(),
        suspensions: BTreeMap::new(),
        limits: BTreeMap::new(),
        waits: BTreeMap::new(),
        reclaimed: [].into(),
        loads: BTreeMap::new(),
        owners: BTreeMap::new(),
        now_ns: at,
        gpus: vec![Gpu {
            total: Bytes(80 * GIB),
            promised: Bytes(24 * GIB),
            slices: 3,
            ..gpu(1, 0)
        }],
        rows: vec![
            row("web", 10, Class::Normal),
            row("train", 90, Class::High),
            row("loader", 0, Class::BestEffort),
        ],
        times: names.map(|name| time(name, at)).to_vec(),
        daemon: None,
    }
}

fn model() -> Model {
    let mut model = Model::new(view(100));
    (101..110).for_each(|seconds| model.see(view(seconds)));
    model.past = past(130);
    model
}

pub(super) fn drawn(model: &Model, (width, height): (u16, u16), colour: bool) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("memory");
    terminal.draw(|frame| draw(frame, model, Look { colour })).expect("drawn");
    terminal.backend().buffer().clone()
}

/// The screen's lines, without spaces at their ends.
fn lines(model: &Model, size: (u16, u16)) -> Vec<String> {
    let buffer = drawn(model, size, true);
    let cells = buffer.content.chunks(usize::from(size.0));
    let line = |cells: &[ratatui::buffer::Cell]| -> String {
        // the cell behind a wide character is empty
        let mut skip = 0;
        let mut text = String::new();
        for cell in cells {
            if skip > 0 {
                skip -= 1;
                continue;
            }
            text += cell.symbol();
            skip = cell.symbol().width().saturating_sub(1);
        }
        text.trim_end().to_owned()
    };
    cells.map(line).collect()
}

pub(super) fn press(model: &mut Model, keys: &str) -> Option<Order> {
    let mut last = None;
    for c in keys.chars() {
        last = model.press(match c {
            '\n' => Key::Enter,
            '\x1b' => Key::Escape,
            '\x08' => Key::Backspace,
            c => Key::Char(c),
        });
    }
    last
}

#[test]
fn eighty_columns_have_every_column() {
    let told = lines(&model(), (80, 24));
    assert_eq!(
        told[..5],
        [
            "GPU0 H200 soft | mem 9 used, 24 promised of 80 GiB | busy 100 % | * train",
            "  NAME         GPU PRIO MEM               DUE  GOT WAIT IDLE WHY",
            "  loader         0 best [||    ] 8GiB      0%   0%   0%  98% idle",
            "* train          0 high [||    ] 8GiB    100%  90%  10%   0% weight 1",
            "  web            0 norm [||    ] 8GiB      0%  10%  90%   0% train: long kernels",
        ],
        "{told:#?}"
    );
    assert!(told[22].starts_with("by NAME  q quit  Enter detail"), "{}", told[22]);
    assert!(told[23].ends_with("l limit c cap p priority"), "{}", told[23]);
    assert_eq!(told.len(), 24);
}

#[test]
fn a_wide_screen_has_sparklines_and_whole_reasons() {
    for size in [(120, 40), (200, 50)] {
        let told = lines(&model(), size);
        let memory = "mem 9 used, 24 promised, 56 unpromised of 80 GiB";
        assert!(told[0].contains(memory), "{told:#?}");
        assert!(told[0].contains("\u{2588}\u{2588}"), "the GPU's history: {told:#?}");
        assert!(told[1].contains(" LAST 2 MIN "), "{told:#?}");
        assert!(told[4].ends_with("train: long kernels"), "{told:#?}");
        assert!(told[4].contains("\u{2583}\u{2583}"), "web's history: {told:#?}");
    }
}

#[test]
fn a_loan_is_in_the_bar_and_in_full_below() {
    let mut model = model();
    let mut lent = view(110);
    let row = lent.rows.iter_mut().find(|it| it.name == "web").expect("a row");
    (row.used, row.reserved) = (Bytes(16 << 30), Bytes(20 << 30));
    let limit = MemoryLimit { limit: Bytes(24 << 30), wanted: Bytes(1 << 30) };
    lent.limits.insert((row.container.clone(), row.gpu), limit);
    model.see(lent);
    let told = lines(&model, (80, 24));
    assert!(told[4].contains(" [||++  ] 8/24G "), "{told:#?}");
    let explained = super::HELP.replace('\n', " ");
    assert!(explained.contains("+ is memory beyond the cap, and cap/limit follow"), "{explained}");
    press(&mut model, "jj\n");
    let full = lines(&model, (120, 40)).join(" ");
    assert!(full.contains("cap 8GiB, limit 24GiB, 8GiB borrowed, 1GiB wanted back"), "{full}");
}

/// Memory of a suspended slice is not used on the GPU, and is told beside it.
#[test]
fn suspended_memory_is_beside_what_is_used() {
    let mut model = model();
    let mut away = view(110);
    let row = away.rows.iter_mut().find(|it| it.name == "web").expect("a row");
    (row.used, row.reserved) = (Bytes::ZERO, Bytes(3 * GIB));
    let container = row.container.clone();
    away.suspensions.insert(container, SuspensionState::Suspended);
    model.see(away);
    for width in [80, 120] {
        let first = &lines(&model, (width, 24))[0];
        assert!(first.contains("mem 6 used") && first.contains(" | 3GiB suspended"), "{first}");
    }
    // The amount and the mark come before the history: the end of the line is cut.
    let mut first_of = |change: &dyn Fn(&mut View)| {
        let mut now = model.now().clone();
        change(&mut now);
        model.see(now);
        lines(&model, (120, 24)).swap_remove(0)
    };
    let health = Health { state: HealthState::Mig, xid: 0, since: 0 };
    let first = first_of(&|now| now.unhealthy = [(now.gpus[0].uuid, health)].into());
    let mark = " 0 unpromised of 80 GiB | MIG mode, no slices | 3GiB suspended | busy ";
    assert!(first.contains(mark), "{first}");
    let first = first_of(&|now| {
        now.unhealthy.clear();
        now.gpus[0].product = "gpuslice simulated GPU".to_owned();
    });
    assert!(first.contains(" 56 unpromised of 80 GiB | 3GiB suspended | busy "), "{first}");
}

/// A cap that is no whole number of GiB has room beside the bar.
#[test]
fn the_cap_beside_the_bar_is_never_cut() {
    let mib = |mib: u64| Bytes(mib << 20);
    for (cap, shown) in [(8192, "8GiB"), (1170, "1170MiB"), (20_389, "19.9G"), (81_559, "79.6G")] {
        let mut view = view(110);
        view.rows.iter_mut().for_each(|row| row.cap = mib(cap));
        let mut model = model();
        model.see(view);
        let told = lines(&model, (80, 24));
        assert!(told[4].contains(&format!("] {shown} ")), "{told:#?}");
    }
}

#[test]
fn a_narrow_screen_drops_columns_and_keeps_the_reason() {
    let head =
        |width| lines(&model(), (width, 24))[1].split_whitespace().map(str::to_owned).collect();
    let heads = |width| -> Vec<String> { head(width) };
    assert_eq!(heads(69), ["NAME", "GPU", "MEM", "DUE", "GOT", "WAIT", "IDLE", "WHY"]);
    assert_eq!(heads(50), ["NAME", "DUE", "GOT", "WAIT", "IDLE", "WHY"]);
    assert_eq!(heads(40), ["NAME", "GOT", "WAIT", "IDLE", "WHY"]);
    assert_eq!(heads(30), ["NAME", "WAIT", "WHY"]);
    assert_eq!(lines(&model(), (30, 24))[4], "  web        90% long kernels");
    for size in [(1, 1), (5, 2), (20, 3), (33, 6), (300, 100)] {
        assert_eq!(lines(&model(), size).len(), usize::from(size.1), "{size:?}");
    }
}

/// Also where a name needs two cells for each of its characters, or is longer than its column.
#[test]
fn no_row_is_wider_than_the_screen() {
    let mut strange = view(110);
    strange.rows[0].name = "\u{5b66}\u{7fd2}".repeat(12);
    strange.rows[2].name = "x".repeat(64);
    let mut model = model();
    model.see(strange);
    for width in [40, 60, 80, 81, 120, 121] {
        let told = lines(&model, (width, 24));
        let at = |line: &str, word: &str| line.find(word).map(|at| line[..at].width());
        let column = told[1].rfind("WHY").map(|at| told[1][..at].width());
        let reason = told.iter().find_map(|line| at(line, "idle"));
        assert_eq!(column, reason, "{width}: {told:#?}");
        // On the row with the wide name; narrower screens cut the reason.
        let wide = told.iter().find_map(|line| at(line, "train: l"));
        assert!(wide == column || width < 80, "{width}: {told:#?}");
    }
}

#[test]
fn without_colour_there_is_none() {
    let coloured = |colour| {
        let buffer = drawn(&model(), (120, 40), colour);
        buffer.content.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert_eq!((coloured(true), coloured(false)), (true, false));
}

#[test]
fn rows_are_sorted_filtered_and_chosen() {
    let mut model = model();
    let names = |model: &Model| -> Vec<String> {
        model.lines().iter().map(|it| it.row.name.clone()).collect()
    };
    assert_eq!(names(&model), ["loader", "train", "web"]);
    press(&mut model, "o");
    assert_eq!((model.sort, names(&model)[0].as_str()), (Sort::Wait, "web"));
    press(&mut model, "oo");
    assert_eq!((model.sort, names(&model)[0].as_str()), (Sort::Idle, "loader"));
    // the choice follows the slice when the order changes
    press(&mut model, "j");
    let chosen = |model: &Model| {
        let lines = model.lines();
        lines[model.selected(&lines)].row.name.clone()
    };
    let before = chosen(&model);
    press(&mut model, "oo");
    assert_eq!(chosen(&model), before);
    press(&mut model, "/TRA\n");
    assert_eq!(names(&model), ["train"]);
    assert!(lines(&model, (80, 24))[22].contains("filter TRA"));
    press(&mut model, "/x\n");
    assert!(lines(&model, (80, 24))[2].contains("no slice matches the filter"));
    press(&mut model, "/\x1b ");
    assert_eq!(names(&model).len(), 3);
    model.see(view(500));
    assert_eq!((model.is_paused, model.now().now_ns), (true, 109 * S), "no view is taken in");
    assert!(lines(&model, (80, 24))[22].starts_with("PAUSED"));
    assert_eq!(press(&mut model, "q"), Some(Order::Quit));
}

#[test]
fn a_change_is_asked_for_and_confirmed() {
    let mut model = model();
    press(&mut model, "/web\n");
    assert_eq!(press(&mut model, "w33\x08"), None);
    assert_eq!(model.mode, Mode::Edit("web".into(), Field::Weight, "3".into()));
    assert!(lines(&model, (80, 24))[23].starts_with("set web --weight 3_"));
    assert_eq!(press(&mut model, "\n"), None);
    assert!(lines(&model, (80, 24))[23].starts_with("set web --weight 3: are you sure?"));
    let order = Order::Set("web".into(), Field::Weight, "3".into());
    assert_eq!(press(&mut model, "y"), Some(order));
    for refused in ["w3\nn", "w3\n\x1b", "w3\x1b", "w\n"] {
        assert_eq!(press(&mut model, refused), None, "{refused:?}");
        assert_eq!(model.mode, Mode::List, "{refused:?}");
    }
    assert_eq!(model.press(Key::Interrupt), Some(Order::Quit));
}

/// A value that cannot be set is refused before the question; the prompt shows the present value and what is taken.
#[test]
fn a_prompt_has_the_value_and_the_choices() {
    let mut model = model();
    press(&mut model, "/web\n");
    for (keys, told) in [
        ("w", "set web --weight _   (now 1; 1 to 1000, or none; Enter, Esc)"),
        ("s", "set web --share _   (now none; 1 to 100 percent, or none; Enter, Esc)"),
        ("l", "set web --share-limit _   (now none; 1 to 100 percent, or none; Enter, Esc)"),
        ("p", "set web --priority _   (now normal; high, normal or best-effort; Enter, Esc)"),
    ] {
        press(&mut model, keys);
        assert_eq!(lines(&model, (80, 24))[23], told);
        press(&mut model, "\x1b");
    }
    press(&mut model, "c");
    let told = &lines(&model, (100, 24))[23];
    assert!(told.contains("GiB; a size as 8GiB, or a part as 1/4; "), "{told}");
    press(&mut model, "\x1b");
    for refused in ["w0", "s150", "pfoo"] {
        press(&mut model, &format!("{refused}\n"));
        assert!(matches!(model.mode, Mode::Edit(..)), "{refused}: {:?}", model.mode);
        let told = lines(&model, (120, 24)).join(" ");
        assert!(told.contains("(invalid value "), "{refused}: {told}");
        press(&mut model, "\x08");
        assert!(model.message.is_empty() && press(&mut model, "\x1b").is_none());
    }
}

/// A value is taken as on the command line of `gpuslice set`, and is never another option.
#[test]
fn a_typed_value_is_one_value() {
    for (option, value, is_fine) in [
        ("--weight", "3", true),
        ("--weight", "none", true),
        ("--share-limit", "50", true),
        ("--memory", "1/4", true),
        ("--priority", "high", true),
        ("--weight", "0", false),
        ("--memory", "8GB", false),
        ("--weight", "3 --memory 1GiB", false),
        ("--priority", "--help", false),
    ] {
        let parsed = set::options("web", option, value);
        assert_eq!(parsed.is_ok(), is_fine, "{option} {value}");
        assert!(parsed.err().is_none_or(|why| why.contains("invalid value")), "{option} {value}");
    }
}

#[test]
fn the_detail_has_the_reason_the_command_and_the_waits() {
    let mut model = model();
    model.processes = Processes::Of("web".into(), vec![process(4242)]);
    press(&mut model, "/web\n\n");
    let told = lines(&model, (100, 40)).join("\n");
    for text in [
        "web (web) on gpu 0, GPU-01010101",
        "why       waits 90 %: behind train, whose queued work lasts up to 1.5 s",
        "10 % running, 90 % waiting",
        "memory    3GiB used",
        "families  3GiB held (allocations 2GiB, pools 512MiB, contexts 512MiB)",
        "  4242 python3: 3GiB held (allocations 2GiB, pools 512MiB, contexts 512MiB), 2MiB unused credit",
    ] {
        assert!(told.contains(text), "{text}: {told}");
    }
    assert!(
        told.contains("  train: ") && told.contains("in all, 1.5 s at most (long-kernel)"),
        "{told}"
    );
    press(&mut model, "\x1b");
    assert_eq!(model.mode, Mode::List);
}

/// It waited until two seconds ago: the time beside the reason is that from which the reason was decided.
#[test]
fn the_detail_has_the_figures_of_its_reason() {
    let mut model = model();
    for seconds in 110..=112 {
        let mut now = view(seconds);
        now.times[0] = time("web", 110 * S);
        now.times[0].parts[0].1 += (seconds - 110) * S;
        model.see(now);
    }
    press(&mut model, "/web\n\n");
    let told = lines(&model, (100, 40)).join("\n");
    for text in
        ["why       waits 54 %: behind train", "time      5.0 s: 46 % running, 54 % waiting"]
    {
        assert!(told.contains(text), "{text}: {told}");
    }
}

/// The daemon's absence begins with the last look before it, and not with the oldest one that is kept.
#[test]
fn a_restart_of_the_daemon_is_counted_from_the_last_look() {
    let daemon = |started_ns| {
        let class_caps = ClassCaps::ALL;
        Some(DaemonState { started_ns, absent_until_ns: 0, absent_ns: 0, class_caps })
    };
    let mut model = Model::new(View { daemon: daemon(S), ..view(100) });
    (101..106).for_each(|at| model.see(View { daemon: daemon(S), ..view(at) }));
    let mut now = View { daemon: daemon(110 * S), ..view(111) };
    now.times.iter_mut().for_each(|it| (it.since_ns, it.parts) = (110 * S, time("web", S).parts));
    model.see(now);
    let absent: Vec<u64> = model.lines().iter().map(|it| it.judged.absent / S).collect();
    assert_eq!(absent, [5; 3]);
    assert!(model.lines()[0].told.sentence.contains("away for up to 5.0 s"));
}

/// A process that holds 3 GiB.
fn process(pid: u32) -> Process {
    let mib = |mib: u64| Bytes(mib << 20);
    Process {
        gpu: GpuUuid([1; 16]),
        pid,
        name: "python3".into(),
        is_connected: true,
        reserved: mib(3074),
        used: mib(3072),
        untracked: Bytes(0),
        families: [0, 0, 512, 0, 512].map(mib),
        contexts: 1,
        launches: 9,
    }
}

/// At 80x24: no sentence is cut, and what does not fit is scrolled to.
#[test]
fn the_detail_of_many_processes_scrolls() {
    let mut model = model();
    model.processes = Processes::Of("web".into(), (1..=40).map(process).collect());
    press(&mut model, "/web\n\n");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = lines(&model, (80, 24));
    for whole in ["0 % gang, 0 % idle, 0 % absent", "gpuslice set train --share-limit 50"] {
        assert!(words(&first.join(" ")).contains(whole), "{whole}: {first:#?}");
    }
    assert!(words(&first[22..].join(" ")).ends_with("c cap p priority"), "{first:#?}");
    assert!(!first.join("").contains("40 python3"));
    let mut seen = first.clone();
    for _ in 0..500 {
        press(&mut model, "j");
        seen.extend(lines(&model, (80, 24)));
    }
    for pid in 1..=40 {
        assert!(seen.iter().any(|line| line.starts_with(&format!("  {pid} python3: "))), "{pid}");
    }
    let last = lines(&model, (80, 24));
    assert!(last.join("").contains("train: "), "the waits are last: {last:#?}");
    press(&mut model, "k");
    assert_ne!(lines(&model, (80, 24)), last, "the end was not passed");
    (0..500).for_each(|_| drop(press(&mut model, "k")));
    assert_eq!(lines(&model, (80, 24)), first);
    assert_eq!(model.container().as_deref(), Some("web"), "the choice stays");
    model.processes = Processes::NotTold;
    assert!(lines(&model, (80, 24)).join(" ").contains("does not list them"));
    for size in [(1, 1), (5, 2), (20, 3), (33, 6), (300, 100)] {
        assert_eq!(lines(&model, size).len(), usize::from(size.1), "{size:?}");
    }
}

#[test]
fn many_gpus_and_many_slices_leave_room() {
    let mut many = view(110);
    many.gpus = (0..16).map(|n| gpu(n + 1, u32::from(n))).collect();
    let one = many.rows[0].clone();
    many.rows = (0..40)
        .map(|n| Row { name: format!("s{n:03}"), container: format!("s{n:03}"), ..one.clone() })
        .collect();
    let mut model = Model::new(many.clone());
    model.see(many);
    let told = lines(&model, (80, 24));
    assert!(told[7].contains("and 9 more GPUs"), "{told:#?}");
    assert!(told[9].starts_with("* s000") || told[9].starts_with("  s000"), "{told:#?}");
    (0..50).for_each(|_| drop(press(&mut model, "j")));
    let told = lines(&model, (80, 24));
    assert!(told.iter().any(|line| line.contains("s039")), "{told:#?}");
    assert!(told.iter().any(|line| line.ends_with(" more above")), "{told:#?}");
    (0..39).for_each(|_| drop(press(&mut model, "k")));
    for height in [10, 14, 24, 40] {
        let told = lines(&model, (80, height));
        let rows = told.iter().filter(|line| line.contains(" s0")).count();
        let sign = format!("  {} more below", 40 - rows);
        assert!(told.contains(&sign), "{height}: {told:#?}");
    }
    assert!(!lines(&model, (80, 60)).iter().any(|line| line.contains(" more below")));
}
