//! A table in the lines of a terminal. Pure.
//!
//! A line that the terminal wraps is hard to read, and cannot be drawn over. So texts are as narrow as the longest of
//! their column, then columns are left out in a known order, and what is still too long is cut. A text that was cut to
//! its column's width gets the room that is left. Columns that were named have whole texts. A line below the table
//! names the columns that were left out. What is true of all rows is said there once.

use super::{Cell, Column, marks, row_of};
use crate::table::View;
use crate::text::{cut, wrapped};
use unicode_width::UnicodeWidthStr;

/// Which columns a narrow terminal loses first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropOrder {
    /// That of [`DROPPED`], for a table whose columns were not named.
    Known,
    /// The last columns first, since they were named in this order.
    LastFirst,
}

/// Columns that a narrow terminal loses, the first one first.
const DROPPED: [&str; 20] = [
    "POD",
    "LAST-REFUSED",
    "STOPS",
    "TIME-BY",
    "PREEMPTED",
    "TURNS",
    "LATE",
    "CAP-BY",
    "UNTRACKED",
    "DENIED",
    "ID",
    "LIMIT",
    "PROCS",
    "WEIGHT",
    "IDLE",
    "USED",
    "CAP",
    "DUE",
    "GPU",
    "WAIT",
];
/// The part of the terminal that marks at the end of rows may take from columns.
const MARKS: usize = 3;

/// Removes columns until `room` cells suffice for the others, the first of which always stays; returns the headings of
/// those that were removed.
fn narrow(columns: &mut Vec<Column>, room: usize, order: DropOrder) -> Vec<&'static str> {
    let before = columns.clone();
    let is_wide = |all: &[Column]| all.iter().map(|it| it.width + 1).sum::<usize>() > room + 1;
    if order == DropOrder::Known {
        for head in DROPPED {
            if is_wide(columns) {
                columns.retain(|it| it.head != head);
            }
        }
    }
    while is_wide(columns) && columns.len() > 1 {
        columns.pop();
    }
    let is_gone = |it: &&Column| columns.iter().all(|left| left.head != it.head);
    before.iter().filter(is_gone).map(|it| it.head).collect()
}

/// Gives texts that are cut the cells that are left of `room`, the first column first.
fn widen(columns: &mut [Column], room: usize, cells: &[Cell<'_>]) {
    let used: usize = columns.iter().map(|it| it.width + 1).sum();
    let mut left = (room + 1).saturating_sub(used);
    for column in columns.iter_mut().filter(|it| it.left) {
        let more = column.longest(cells).saturating_sub(column.width).min(left);
        column.width += more;
        left -= more;
    }
}

/// The table as lines of at most `width` cells, the header first.
pub fn fitted(
    (before, now): (&View, &View),
    columns: &[Column],
    (width, order): (usize, DropOrder),
) -> Vec<String> {
    let cells: Vec<Cell<'_>> = now.rows.iter().map(|row| Cell { before, now, row }).collect();
    let all_simulated = now.gpus.iter().all(|gpu| gpu.uuid.is_simulated());
    let marks: Vec<String> = cells.iter().map(|it| marks(it, !all_simulated)).collect();
    let as_narrow = |column: &Column| {
        let longest = column.longest(&cells);
        let width = match (column.left, order) {
            (true, DropOrder::LastFirst) => longest,
            (true, DropOrder::Known) => column.width.min(longest),
            (false, _) => column.width,
        };
        Column { width: width.max(column.head.len()), ..*column }
    };
    let mut columns: Vec<Column> = columns.iter().map(as_narrow).collect();
    let room = marks.iter().map(|it| it.width()).max().unwrap_or(0).min(width / MARKS);
    let dropped = narrow(&mut columns, width.saturating_sub(room), order);
    widen(&mut columns, width.saturating_sub(room), &cells);
    let head = columns.iter().map(|it| it.padded(it.head)).collect::<Vec<_>>().join(" ");
    let mut lines = vec![cut(head.trim_end(), width)];
    lines.extend(
        cells.iter().zip(&marks).map(|(it, mark)| cut(&(row_of(it, &columns) + mark), width)),
    );
    if !dropped.is_empty() {
        let told = format!("(no room for {}; choose columns with -o)", dropped.join(", "));
        lines.extend(wrapped(&told, 1, width));
    }
    if all_simulated && !cells.is_empty() {
        lines.push(cut(&format!("(all GPUs are {})", now.simulated()), width));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::{parse, standard};
    use super::*;
    use crate::table::Row;
    use crate::table::tests::{gpu, slice};
    use gpuslice_wire::snapshot::SuspensionState;
    use gpuslice_wire::units::Bytes;

    /// A node with one slice, whose texts are as long as they can be.
    fn view(is_suspended: bool) -> View {
        let simulated = "GPU-67707573-696d-82f3-ac20-e16a02382aa8".parse().expect("a UUID");
        let mut row = slice("a-name-of-sixteen", 1000, Some(100), true, 0);
        (row.gpu, row.cap, row.used) = (simulated, Bytes(1023 << 30), Bytes(1023 << 30));
        let gpus = vec![crate::table::Gpu { uuid: simulated, ..gpu(1, 15) }];
        let suspensions = [(row.container.clone(), SuspensionState::Suspended)];
        let suspensions = suspensions.into_iter().filter(|_| is_suspended).collect();
        View { gpus, rows: vec![row], suspensions, ..View::default() }
    }

    fn told(view: &View, columns: &[Column], width: usize, order: DropOrder) -> Vec<String> {
        fitted((view, view), columns, (width, order))
    }

    /// Each row takes one line of the terminal, its marks included, and the columns left out are named.
    #[test]
    fn a_narrow_terminal_loses_columns() {
        let all: Vec<Column> = super::super::ALL.to_vec();
        let chosen = parse("NAME,CONTAINER,UUID,WHY,POD").expect("columns");
        for width in [5, 10, 40, 60, 80, 100, 120, 200] {
            for (columns, order) in [
                (&standard(false), DropOrder::Known),
                (&standard(true), DropOrder::Known),
                (&all, DropOrder::LastFirst),
                (&chosen, DropOrder::LastFirst),
            ] {
                let told = told(&view(true), columns, width, order);
                assert!(told.iter().all(|line| line.width() <= width), "{width}: {told:#?}");
            }
        }
        let at = |width| told(&view(false), &standard(false), width, DropOrder::Known);
        let heads = |width| at(width)[0].split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(heads(80), ["NAME", "GPU", "CAP", "USED", "WEIGHT", "DUE", "GOT", "WAIT"]);
        assert!(
            at(80)[2].starts_with("(no room for UNTRACKED, CAP-BY, DENIED, PROCS; "),
            "{:#?}",
            at(80)
        );
        assert_eq!(at(80)[3..], ["(all GPUs are simulated (kind))"]);
        assert_eq!(
            (heads(200).len(), at(200).len()),
            (standard(false).len(), 3),
            "all, two notes less"
        );
        assert_eq!(heads(14), ["NAME"]);
    }

    /// The state of a slice stays where columns go; a GPU that is not simulated has others marked.
    #[test]
    fn marks_have_room() {
        let told = told(&view(true), &standard(true), 80, DropOrder::Known);
        assert!(told[1].ends_with("  suspended"), "{told:#?}");
        let mut mixed = view(true);
        mixed.gpus.push(gpu(2, 3));
        let told = super::tests::told(&mixed, &standard(false), 80, DropOrder::Known);
        assert!(
            told[1].ends_with("  suspended  simulated") && !told[2].contains("all GPUs"),
            "{told:#?}"
        );
    }

    /// A name has the room that other columns leave; where columns were named, it is whole.
    #[test]
    fn a_name_gets_the_room_that_is_left() {
        let name = "tenant-with-a-very-long-name-7";
        let rows = vec![slice(name, 1, None, true, 0)];
        let view = View { rows, gpus: vec![gpu(1, 0)], ..View::default() };
        let shown = |columns: &[Column], width, order| {
            let told = told(&view, columns, width, order);
            assert!(told.iter().all(|line| line.width() <= width), "{told:#?}");
            told[1].split(' ').next().unwrap_or_default().to_owned()
        };
        assert_eq!(shown(&standard(false), 140, DropOrder::Known), name);
        assert!(shown(&standard(false), 60, DropOrder::Known).starts_with("tenant-with-a-v"));
        let chosen = parse("NAME,GOT,WAIT").expect("columns");
        assert_eq!(shown(&chosen, 40, DropOrder::LastFirst), name);
    }

    /// Columns that were named go from the right, and texts are as wide as they must be.
    #[test]
    fn named_columns_go_from_the_right() {
        let rows = vec![
            slice("a", 1, None, true, 0),
            Row { name: "web".into(), ..slice("b", 1, None, true, 0) },
        ];
        let view = View { rows, gpus: vec![gpu(1, 0)], ..View::default() };
        let columns = parse("NAME,CONTAINER,WANTED,UUID").expect("columns");
        let told = told(&view, &columns, 30, DropOrder::LastFirst);
        assert_eq!(told[0], "NAME CONTAINER    WANTED");
        assert_eq!(told[2], "web  b                0B");
        assert!(told[3].starts_with("(no room for UUID;"), "{told:#?}");
    }
}
