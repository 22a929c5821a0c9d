//! The columns of `gpuslice ps`: each is a row of one list, with its heading, its width and its text.

mod fit;

pub use fit::{DropOrder, fitted};

use crate::table::{Row, View, WHOLE_PPM, memory_enforcement_name, time_enforcement_name};
use crate::text::cut;
use crate::why::{Finding, decide};
use gpuslice_wire::policy::Class;
use gpuslice_wire::units::Bytes;
use unicode_width::UnicodeWidthStr;

/// A slice, and the two views between which its rates are measured.
pub struct Cell<'a> {
    before: &'a View,
    now: &'a View,
    row: &'a Row,
}

impl Cell<'_> {
    fn finding(&self) -> Finding {
        decide(Some(self.before), self.now, self.row)
    }
}

/// A column.
#[derive(Clone, Copy)]
pub struct Column {
    /// Its heading, by which an option names it.
    pub head: &'static str,
    /// Characters. A longer text is cut where a terminal has no room for it.
    width: usize,
    /// Text begins at the left, figures end at the right.
    left: bool,
    text: fn(&Cell<'_>) -> String,
}

const fn left(head: &'static str, width: usize, text: fn(&Cell<'_>) -> String) -> Column {
    Column { head, width, left: true, text }
}

const fn right(head: &'static str, width: usize, text: fn(&Cell<'_>) -> String) -> Column {
    Column { head, width, left: false, text }
}

/// Characters of a short ID, as container engines print them. Commands take it in place of the whole ID, so it
/// must not end with an ellipsis.
const SHORT_ID: usize = 12;
/// Cells of a reason.
const WHY: usize = 28;
/// Columns of the ordinary table.
const ORDINARY: usize = 12;
/// Columns of the wide one.
const WIDE: usize = ORDINARY + 9;

/// All columns: first those of the ordinary table, then those that the wide one adds.
pub const ALL: [Column; WIDE + 10] = [
    left("NAME", 16, |it| it.row.name.clone()),
    right("GPU", 3, |it| it.now.index(it.row.gpu).to_string()),
    right("CAP", 9, |it| it.row.cap.to_string()),
    right("USED", 9, |it| it.row.used.to_string()),
    right("UNTRACKED", 9, |it| it.row.untracked.to_string()),
    left("CAP-BY", 9, |it| memory_enforcement_name(it.row.memory_enforcement).to_owned()),
    right("DENIED", 7, |it| it.row.denied.to_string()),
    right("WEIGHT", 13, |it| weight(it.row)),
    right("DUE", 7, |it| percent(it.now.due_since(Some(it.before), it.row))),
    right("GOT", 7, |it| it.now.got(it.row, it.before).map_or("-".to_owned(), percent)),
    right("WAIT", 7, |it| percent(it.now.waited(it.row, it.before))),
    right("PROCS", 5, |it| it.row.clients.to_string()),
    left("ID", SHORT_ID, |it| it.row.container.chars().take(SHORT_ID).collect()),
    right("LIMIT", 6, |it| limit(it.row)),
    right("TURNS", 8, |it| it.row.turns.to_string()),
    right("LATE", 4, |it| it.row.late_turns.to_string()),
    right("PREEMPTED", 9, |it| it.row.closed_early.to_string()),
    left("TIME-BY", 9, |it| time_enforcement_name(it.row.time_enforcement).to_owned()),
    right("STOPS", 5, |it| it.row.stops.to_string()),
    left("LAST-REFUSED", 30, |it| it.row.refusal().unwrap_or_else(|| "never".to_owned())),
    left("POD", 40, pod),
    right("IDLE", 7, |it| {
        let growth = it.finding().growth;
        percent(growth.part(growth.idle))
    }),
    left("WHY", WHY, |it| it.finding().told(it.now, it.row).fitted(WHY)),
    left("PRIO", 11, |it| it.row.class.to_string()),
    right("LEFT", 9, |it| {
        let held = it.row.used.0.saturating_add(it.row.untracked.0);
        let held = held.max(it.now.on_host(it.row).0);
        Bytes(it.row.cap.0.saturating_sub(held)).to_string()
    }),
    right("PEAK", 9, |it| it.row.peak.to_string()),
    right("LAUNCHES", 10, |it| it.row.launches.to_string()),
    left("UUID", 40, |it| it.row.gpu.to_string()),
    right("MEM-LIMIT", 9, |it| it.now.limit(it.row).limit.to_string()),
    right("WANTED", 9, |it| it.now.limit(it.row).wanted.to_string()),
    left("CONTAINER", 64, |it| it.row.container.clone()),
];

/// The columns of the ordinary table, or of the wide one.
pub fn standard(wide: bool) -> Vec<Column> {
    ALL[..if wide { WIDE } else { ORDINARY }].to_vec()
}

/// The columns that `text` lists, separated by commas.
///
/// # Errors
/// A name is of no column; the text for the person.
pub fn parse(text: &str) -> Result<Vec<Column>, String> {
    let column = |name: &str| {
        let dashed = name.trim().replace(' ', "-");
        let is_meant = |it: &&Column| it.head.eq_ignore_ascii_case(&dashed);
        let all = || ALL.map(|it| it.head).join(", ");
        let found = ALL.iter().find(is_meant).copied();
        found.ok_or_else(|| format!("no column is called {name:?}; the columns are: {}", all()))
    };
    text.split(',').map(column).collect()
}

/// The table as lines, the header first; no text is cut. Rates are measured between the two views.
pub fn lines(before: &View, now: &View, columns: &[Column]) -> Vec<String> {
    let cells: Vec<Cell<'_>> = now.rows.iter().map(|row| Cell { before, now, row }).collect();
    let whole = |it: &Column| Column { width: it.width.max(it.longest(&cells)), ..*it };
    let columns: Vec<Column> = columns.iter().map(whole).collect();
    let head: Vec<String> = columns.iter().map(|it| it.padded(it.head)).collect();
    let mut all = vec![head.join(" ").trim_end().to_owned()];
    all.extend(cells.iter().map(|cell| row_of(cell, &columns) + &marks(cell, true)));
    all
}

/// A slice's texts in their columns.
fn row_of(cell: &Cell<'_>, columns: &[Column]) -> String {
    let texts: Vec<String> = columns.iter().map(|it| it.padded(&(it.text)(cell))).collect();
    texts.join(" ").trim_end().to_owned()
}

/// What follows the columns of a slice: its states first, then whether its GPU is simulated, if that is to be said.
fn marks(it: &Cell<'_>, with_simulated: bool) -> String {
    let amount = |bytes: Bytes, what: &str| match bytes {
        Bytes::ZERO => None,
        bytes => Some(format!("{bytes} {what}")),
    };
    let suspension = it.now.suspensions.get(&it.row.container).map(|state| state.name());
    let suspended = suspension.and_then(|state| amount(it.now.on_host(it.row), state));
    let borrowed = amount(it.now.borrowed(it.row), "borrowed");
    let wanted = amount(it.now.limit(it.row).wanted, "wanted back");
    let marks = [
        suspended.as_deref().or(suspension),
        borrowed.as_deref(),
        wanted.as_deref(),
        it.now.frozen.contains(&it.row.container).then_some("frozen"),
        it.now.is_over(it.row).then_some("over"),
        (it.row.gang != 0).then_some("gang"),
        (it.row.time_slice_changes > 0).then_some("time slice changed"),
        (with_simulated && it.row.gpu.is_simulated()).then_some("simulated"),
    ];
    marks.into_iter().flatten().map(|mark| format!("  {mark}")).collect()
}

impl Column {
    /// Cells of its longest text.
    fn longest(&self, cells: &[Cell<'_>]) -> usize {
        cells.iter().map(|cell| (self.text)(cell).width()).max().unwrap_or(0)
    }

    /// The text in the column's width, by the cells that a terminal uses for each character.
    fn padded(&self, text: &str) -> String {
        let text = if self.left { cut(text, self.width) } else { text.to_owned() };
        let space = " ".repeat(self.width.saturating_sub(text.width()));
        if self.left { text + &space } else { space + &text }
    }
}

fn percent(part: f64) -> String {
    format!("{:.1}%", 100.0 * part)
}

/// Namespace, pod and container, as Kubernetes names them; empty outside a pod.
fn pod(it: &Cell<'_>) -> String {
    let owner = it.now.owners.get(&it.row.container);
    owner.map_or(String::new(), |it| format!("{}/{}/{}", it.namespace, it.pod, it.container))
}

fn limit(row: &Row) -> String {
    match row.cap_ppm {
        WHOLE_PPM.. => "none".to_owned(),
        ppm => format!("{:.1}%", f64::from(ppm) / 1e4),
    }
}

/// The WEIGHT column: the share and the limit, as `25-50%`, then the weight, and the class unless it is
/// normal. A weight of 1 is left out beside a class.
fn weight(row: &Row) -> String {
    let share = match (row.share, row.share_limit) {
        (None, None) => None,
        (Some(share), None) => Some(format!("{share}%")),
        (share, Some(limit)) => Some(format!("{}-{limit}%", share.unwrap_or(0))),
    };
    let weight = row.weight.map(|weight| weight.to_string());
    let own = match (share, weight) {
        (Some(share), Some(weight)) => format!("{share}+{weight}"),
        (share, weight) => share.or(weight).unwrap_or_default(),
    };
    match (row.class, own.as_str()) {
        (Class::Normal, _) => own,
        (Class::High, "1") => "high".to_owned(),
        (Class::High, _) => format!("high {own}"),
        (Class::BestEffort, "1") => "best-eff".to_owned(),
        (Class::BestEffort, _) => format!("be {own}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::MemoryLimit;
    use crate::table::tests::slice;
    use gpuslice_wire::snapshot::SuspensionState;
    use gpuslice_wire::units::Bytes;
    use std::collections::BTreeMap;

    #[test]
    fn share_limit_and_weight_are_one_column() {
        let row = |weight, share, share_limit, class| {
            let row = Row { weight, share, share_limit, class, ..slice("a", 1, None, true, 0) };
            super::weight(&row)
        };
        let normal = |weight, share, limit| row(weight, share, limit, Class::Normal);
        assert_eq!(normal(Some(3), None, None), "3");
        assert_eq!(normal(None, Some(25), None), "25%");
        assert_eq!(normal(Some(3), Some(25), Some(50)), "25-50%+3");
        assert_eq!(normal(Some(1), None, Some(50)), "0-50%+1");
        assert_eq!(row(Some(1), None, None, Class::High), "high");
        assert_eq!(row(None, Some(25), Some(25), Class::BestEffort), "be 25-25%");
    }

    #[test]
    fn columns_are_chosen_by_name() {
        let heads = |text: &str| {
            let columns = parse(text)?;
            Ok::<_, String>(columns.iter().map(|it| it.head).collect::<Vec<_>>())
        };
        assert_eq!(
            heads("name,mem limit,last-refused"),
            Ok(vec!["NAME", "MEM-LIMIT", "LAST-REFUSED"])
        );
        for bad in ["", "NAME,", "NAME;DUE", "nosuch"] {
            let why = heads(bad).expect_err("no column");
            assert!(why.contains("LAST-REFUSED, POD, IDLE, WHY"), "{why}");
        }
        let names: std::collections::BTreeSet<&str> = ALL.iter().map(|it| it.head).collect();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn wide_characters_keep_the_columns_in_line() {
        let wide = Row { name: "\u{5b66}\u{7fd2}".repeat(6), ..slice("a", 1, None, true, 0) };
        let rows = vec![slice("b", 1, None, true, 0), wide];
        let view = View { rows, ..View::default() };
        let told = lines(&view, &view, &parse("NAME,CAP").unwrap_or_default());
        assert_eq!(told[1].width(), told[2].width(), "{told:?}");
    }

    /// A script reads names, and two of them may differ at their ends alone.
    #[test]
    fn a_pipe_gets_whole_names() {
        let named = |n| format!("tenant-with-a-very-long-name-{n}");
        let rows = [1, 2].map(|n| slice(&named(n), 1, None, true, 0)).into();
        let view = View { rows, ..View::default() };
        for columns in [parse("NAME").unwrap_or_default(), standard(false), standard(true)] {
            let told = lines(&view, &view, &columns);
            let names: Vec<_> = told.iter().filter_map(|it| it.split(' ').next()).collect();
            assert_eq!(names[1..], [named(1), named(2)], "{told:#?}");
        }
    }

    #[test]
    fn a_long_id_is_shown_as_one_that_commands_take() {
        let id = "c0ffee0123456789";
        let long = Row { container: id.to_owned(), ..slice("a", 1, None, true, 0) };
        let view = View { rows: vec![long], ..View::default() };
        let told = lines(&view, &view, &parse("ID,CONTAINER,NAME").unwrap_or_default());
        let shown: Vec<&str> = told[1].split_whitespace().collect();
        assert_eq!(shown[..2], [&id[..SHORT_ID], id], "{told:?}");
    }

    #[test]
    fn a_suspended_slice_is_marked() {
        let rows = vec![slice("a", 1, None, true, 0), slice("b", 1, None, true, 0)];
        let away = rows[0].container.clone();
        let suspensions = [(away, SuspensionState::Suspended)].into();
        let view = View { rows, suspensions, ..View::default() };
        let told = lines(&view, &view, &standard(false));
        assert!(told[1].ends_with("  suspended") && !told[2].contains("suspend"), "{told:?}");
    }

    /// A loan is the memory held beyond the cap: USED and UNTRACKED add up to CAP and the loan. Credit is no loan.
    #[test]
    fn a_loan_and_suspended_memory_are_marked_with_their_sizes() {
        let mut row = slice("a", 1, None, true, 0);
        let mib = |mib: u64| Bytes(mib << 20);
        (row.used, row.untracked, row.reserved) = (mib(1500), mib(36), mib(1700));
        let limit = MemoryLimit { limit: mib(2048), wanted: mib(100) };
        let limits = [((row.container.clone(), row.gpu), limit)].into();
        let lent = View { rows: vec![row.clone()], limits, ..View::default() };
        let told = lines(&lent, &lent, &standard(false));
        assert!(told[1].ends_with(" 1  512MiB borrowed  100MiB wanted back"), "{told:?}");
        // Without a limit above its cap it has borrowed nothing: the cap was lowered.
        let above = View { limits: BTreeMap::new(), ..lent.clone() };
        let told = lines(&above, &above, &standard(false));
        assert!(told[1].ends_with(" 1  over"), "{told:?}");
        let suspensions = [(row.container.clone(), SuspensionState::Suspended)].into();
        let mut away = View { suspensions, ..lent };
        (away.rows[0].used, away.rows[0].untracked) = (Bytes::ZERO, Bytes::ZERO);
        let told = lines(&away, &away, &standard(false));
        assert!(told[1].ends_with(" 1  1700MiB suspended  100MiB wanted back"), "{told:?}");
    }

    #[test]
    fn a_slice_with_turns_on_several_gpus_is_marked() {
        let view = |gang| View {
            rows: vec![Row { gang, ..slice("a", 1, None, true, 0) }],
            ..View::default()
        };
        let last = |view: &View| lines(view, view, &standard(false)).pop().expect("a row");
        assert!(last(&view(1)).ends_with("  gang"), "{}", last(&view(1)));
        assert!(!last(&view(0)).contains("gang"));
    }

    #[test]
    fn a_slice_above_its_cap_and_its_last_refusal_are_shown() {
        let mut row = slice("a", 1, None, true, 0);
        (row.used, row.untracked) = (row.cap, Bytes(1));
        let view = View { rows: vec![slice("b", 1, None, true, 0), row], ..View::default() };
        let told = lines(&view, &view, &standard(true));
        assert!(
            told[0].contains("LAST-REFUSED")
                && told[0].ends_with("POD")
                && told[1].contains(" accounted ")
                && told[1].contains(" none "),
            "{told:?}"
        );
        assert!(told[1].contains(" 3MiB with 1MiB left"), "{told:?}");
        assert!(told[2].ends_with("left  over"), "{told:?}");
        assert!(lines(&view, &view, &standard(false))[1].ends_with(" 1"));
    }

    /// A slice that is alone has all the GPU's time: what it uses of that is NVML's figure, or is not known.
    #[test]
    fn got_without_turns_is_what_nvml_shows() {
        let view = |now_ns, loads: &[f64]| {
            let open = Row { gated: 0, ..slice("a", 1, None, true, now_ns) };
            let loads = loads.iter().map(|load| (open.gpu, *load)).collect();
            View { now_ns, rows: vec![open], loads, ..View::default() }
        };
        let got = |loads: &[f64]| {
            let columns = parse("GOT").unwrap_or_default();
            lines(&view(1_000, &[]), &view(2_000, loads), &columns)[1].trim().to_owned()
        };
        assert_eq!((got(&[0.03]).as_str(), got(&[]).as_str()), ("3.0%", "-"));
    }

    #[test]
    fn got_is_shown_in_percent() {
        let view = |now_ns, gpu_ns| {
            let rows = vec![slice("a", 1, None, true, gpu_ns)];
            View { now_ns, rows, ..View::default() }
        };
        let told = lines(&view(1_000, 500), &view(2_000, 750), &standard(false));
        assert!(told[1].contains(" 25.0%"), "{told:?}");
    }
}
