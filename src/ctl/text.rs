//! Words for people: texts in the cells of a terminal, numbers and what they count.

use unicode_width::UnicodeWidthChar;

/// The beginning of a text that takes at most `width` cells of a terminal.
pub fn cut(text: &str, width: usize) -> String {
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used <= width
    };
    text.chars().take_while(fits).collect()
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
    fn one_thing_is_singular() {
        let both = |what| [0, 1, 2].map(|number| counted(number, what));
        assert_eq!(both("process"), ["0 processes", "1 process", "2 processes"]);
        assert_eq!(both("launch"), ["0 launches", "1 launch", "2 launches"]);
        assert_eq!(both("turn"), ["0 turns", "1 turn", "2 turns"]);
    }
}
