//! Aligned columns, byte for byte as Go's `text/tabwriter` makes them with two spaces of padding.
//!
//! A cell ends with a tab, and a column is a run of adjacent lines that have a cell there. So a line without a tab
//! separates tables, and the text behind a line's last tab belongs to no column. A line that ends with a tab has
//! its last cell padded, with spaces at the line's end; programs that compare the output see them.

/// Spaces between columns.
const PADDING: usize = 2;

/// Replaces the tabs of a text by spaces.
#[must_use]
pub fn align(text: &str) -> String {
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let mut out = String::with_capacity(text.len() * 2);
    block(&lines, &mut Vec::new(), &mut out);
    out
}

/// Writes lines whose first columns have these widths.
fn block(lines: &[Vec<&str>], widths: &mut Vec<usize>, out: &mut String) {
    let column = widths.len();
    // The last cell of a line ends with no tab.
    let has = |line: &Vec<&str>| column + 1 < line.len();
    for run in lines.chunk_by(|a, b| has(a) == has(b)) {
        if !has(&run[0]) {
            run.iter().for_each(|line| write(line, widths, out));
            continue;
        }
        let width = run.iter().map(|line| line[column].chars().count()).max();
        widths.push(width.unwrap_or(0) + PADDING);
        block(run, widths, out);
        widths.pop();
    }
}

fn write(line: &[&str], widths: &[usize], out: &mut String) {
    for (at, cell) in line.iter().enumerate() {
        out.push_str(cell);
        if let Some(width) = widths.get(at) {
            let padding = width.saturating_sub(cell.chars().count());
            out.extend(std::iter::repeat_n(' ', padding));
        }
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_runs_of_adjacent_lines() {
        assert_eq!(align("a\tb\nccc\td\n"), "a    b\nccc  d\n");
        assert_eq!(align("a\tb\n---\nccc\td\n"), "a  b\n---\nccc  d\n");
        assert_eq!(align("a\tb\t\nccc\t\n"), "a    b  \nccc  \n");
        assert_eq!(align("a\t\tb\nc\td\te\n"), "a     b\nc  d  e\n");
        assert_eq!(align("\n\nü\tb\nab\tc\n"), "\n\nü   b\nab  c\n");
    }

    #[test]
    fn a_column_ends_where_a_line_lacks_it() {
        let text = "x\tlong cell\ty\nx\tz\nx\ts\tt\n";
        assert_eq!(align(text), "x  long cell  y\nx  z\nx  s  t\n");
    }
}
