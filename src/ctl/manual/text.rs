//! Text for a terminal as a part of a manual page.
//!
//! Help texts and comments of the configuration have tables: indented lines of a word and, two spaces later, what it
//! means. A page fills its lines, which would make one paragraph of a table. So each row becomes a tagged paragraph,
//! whose text begins at a common column and is filled there.

use clap_mangen::roff::{Roff, bold, roman};

/// The widest tag beside which its text still begins, cells.
const TAG_MAX: usize = 22;

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
enum Part<'a> {
    /// A line of a paragraph.
    Line(&'a str),
    /// The end of a paragraph.
    End,
    /// Rows: a tag, and the lines of its text.
    Rows(Vec<(&'a str, Vec<&'a str>)>),
}

/// Adds the text to the page. Inside a tagged paragraph, rows are indented further.
pub fn add<'a>(page: &mut Roff, lines: impl IntoIterator<Item = &'a str>, is_inside: bool) {
    // A paragraph without a tag that keeps the indent of the one around.
    let paragraph = if is_inside { "IP" } else { "PP" };
    let mut is_new = false;
    for part in parts(lines) {
        match part {
            Part::Line(line) => {
                if std::mem::take(&mut is_new) {
                    page.control(paragraph, []);
                }
                page.text([roman(line)]);
            }
            Part::End => is_new = true,
            Part::Rows(rows) => {
                add_rows(page, &rows, is_inside);
                is_new = true;
            }
        }
    }
}

fn add_rows(page: &mut Roff, rows: &[(&str, Vec<&str>)], is_inside: bool) {
    let widths = rows.iter().map(|(tag, _)| tag.chars().count());
    let width = (widths.max().unwrap_or(0).min(TAG_MAX) + 2).to_string();
    if is_inside {
        page.control("RS", []);
    }
    for (at, (tag, text)) in rows.iter().enumerate() {
        if at == 1 {
            page.control("PD", ["0"]); // rows stand together, as in the text
        }
        page.control("TP", [width.as_str()]);
        page.text([bold(*tag)]);
        text.iter().for_each(|line| {
            page.text([roman(*line)]);
        });
    }
    page.control("PD", []);
    if is_inside {
        page.control("RE", []);
    }
}

fn parts<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<Part<'a>> {
    let mut parts = Vec::new();
    // The column at which the text of the last row begins.
    let mut column = 0;
    for line in lines {
        let indent = line.len() - line.trim_start().len();
        match (line.trim(), parts.last_mut()) {
            ("", _) => parts.push(Part::End),
            (text, _) if indent < 2 => parts.push(Part::Line(text)),
            (text, Some(Part::Rows(rows))) if indent >= column => {
                rows.last_mut().into_iter().for_each(|(_, lines)| lines.push(text));
            }
            (text, last) => {
                let (tag, about) = text.split_once("  ").unwrap_or((text, ""));
                let about = about.trim_start();
                column = indent + text.len() - about.len();
                let row = (tag, Vec::from_iter((!about.is_empty()).then_some(about)));
                match last {
                    Some(Part::Rows(rows)) => rows.push(row),
                    _ => parts.push(Part::Rows(vec![row])),
                }
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Files changed:
  docker   a runtime in daemon.json
  podman   a file in its hooks directory, usually
           /usr/share/containers
  -        nothing

More text.";

    #[test]
    fn rows_and_paragraphs_are_told_apart() {
        let rows = vec![
            ("docker", vec!["a runtime in daemon.json"]),
            ("podman", vec!["a file in its hooks directory, usually", "/usr/share/containers"]),
            ("-", vec!["nothing"]),
        ];
        let expected =
            [Part::Line("Files changed:"), Part::Rows(rows), Part::End, Part::Line("More text.")];
        assert_eq!(parts(TEXT.lines()), expected);
        assert_eq!(parts(["  gpuslice ps"]), [Part::Rows(vec![("gpuslice ps", vec![])])]);
        assert_eq!(parts([]), []);
    }

    #[test]
    fn each_row_is_a_tagged_paragraph() {
        let mut page = Roff::new();
        add(&mut page, TEXT.lines(), false);
        let page = page.to_roff();
        assert_eq!(page.matches(".TP 8\n").count(), 3, "{page}");
        assert!(
            page.contains("\\fBpodman\\fR\na file in its hooks directory, usually\n/usr"),
            "{page}"
        );
        assert!(page.contains(".PP\nMore text."), "{page}");
    }
}
