//! Words for people: texts in the cells of a terminal, numbers and what they count.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// A text in at most `width` cells of a terminal; one that is longer is cut, and ends with an ellipsis.
pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut used = 1;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used <= width
    };
    let begin: String = text.chars().take_while(fits).collect();
    begin + if width > 0 { "\u{2026}" } else { "" }
}

/// A text in lines of `width` cells, of which those after the first begin with `indent` spaces.
pub fn wrapped(text: &str, indent: usize, width: usize) -> Vec<String> {
    let space = " ".repeat(indent.min(width / 2));
    let options = textwrap::Options::new(width.max(1)).subsequent_indent(&space);
    let lines = textwrap::wrap(text, options).into_iter();
    lines.map(|line| line.replace('\u{a0}', " ")).collect()
}

/// A number and what it counts: `1 process`, `2 processes`.
pub fn counted(number: u64, what: &str) -> String {
    let end = match what {
        _ if number == 1 => "",
        _ if what.ends_with(['s', 'x']) || what.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{number} {what}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_cut_says_so() {
        assert_eq!(
            [0, 1, 3, 4, 9].map(|width| cut("abcd", width)),
            ["", "…", "ab…", "abcd", "abcd"]
        );
        let wide = "\u{5b66}\u{7fd2}";
        assert_eq!([1, 2, 3, 4].map(|width| cut(wide, width)), ["…", "…", "\u{5b66}…", wide]);
    }

    #[test]
    fn one_thing_is_singular() {
        let both = |what| [0, 1, 2].map(|number| counted(number, what));
        assert_eq!(both("process"), ["0 processes", "1 process", "2 processes"]);
        assert_eq!(both("launch"), ["0 launches", "1 launch", "2 launches"]);
        assert_eq!(both("turn"), ["0 turns", "1 turn", "2 turns"]);
    }
}
