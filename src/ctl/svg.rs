//! Pictures as SVG: rectangles, lines and texts in a string. Pure.
//!
//! An SVG is text: a diff shows what changed in a picture, a test compares it with the one that is checked in, and a
//! browser shows it at any size. Texts come from tenants, so each is escaped.

use std::fmt::Write;

/// The colours of pictures: readable on a dark and on a light page, and different for a colour-blind reader.
pub const SERIES: [&str; 10] = [
    "#4e9bd6", "#e8a33d", "#4fb286", "#d46a9f", "#9d7fd1", "#c9c04a", "#e06c5b", "#57b8c4",
    "#a88b6a", "#8f9bb3",
];
/// The page.
pub const PAGE: &str = "#14171c";
/// Ordinary text.
pub const TEXT: &str = "#d7dce2";
/// Text of less importance.
pub const FAINT: &str = "#8b95a1";
/// Lines of a grid.
pub const GRID: &str = "#2b313a";

/// Where a text is anchored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// It begins there.
    Start,
    /// Its middle is there.
    Middle,
    /// It ends there.
    End,
}

/// A picture that is being drawn. Coordinates are pixels from the upper left corner.
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// A number with two decimals at most.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A text as SVG shows it. Characters that XML forbids are left out.
pub fn escaped(text: &str) -> String {
    let mut all = String::new();
    for c in text.chars() {
        match c {
            '&' => all.push_str("&amp;"),
            '<' => all.push_str("&lt;"),
            '>' => all.push_str("&gt;"),
            '"' => all.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {}
            c => all.push(c),
        }
    }
    all
}

impl Svg {
    /// An empty page.
    pub fn new(width: f64, height: f64) -> Svg {
        let mut svg = Svg { width, height, body: String::new() };
        svg.rect((0.0, 0.0), (width, height), PAGE, None);
        svg
    }

    /// Adds a line to the body. Writing to a string cannot fail.
    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.body, "{element}");
    }

    /// A filled rectangle, with a text that a browser shows when the pointer is over it.
    pub fn rect(
        &mut self,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        fill: &str,
        title: Option<&str>,
    ) {
        let [x, y, width, height] = [x, y, width, height].map(number);
        let at =
            format!(r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}""#);
        match title {
            None => self.add(format_args!("{at}/>")),
            Some(title) => {
                self.add(format_args!("{at}><title>{}</title></rect>", escaped(title)));
            }
        }
    }

    /// A rectangle of this colour and opacity, with a text that a browser shows when the pointer is over it.
    pub fn faint_rect(
        &mut self,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        (fill, opacity): (&str, f64),
        title: &str,
    ) {
        let [x, y, width, height, opacity] = [x, y, width, height, opacity].map(number);
        let title = escaped(title);
        self.add(format_args!(
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" fill-opacity="{opacity}"><title>{title}</title></rect>"#
        ));
    }

    /// A text whose baseline is at `y`; `size` is the height of its font.
    pub fn text(
        &mut self,
        (x, y): (f64, f64),
        size: f64,
        (fill, anchor): (&str, Anchor),
        text: &str,
    ) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => r#" text-anchor="middle""#,
            Anchor::End => r#" text-anchor="end""#,
        };
        let [x, y, size] = [x, y, size].map(number);
        let text = escaped(text);
        self.add(format_args!(
            r#"<text x="{x}" y="{y}" font-size="{size}" fill="{fill}"{anchor}>{text}</text>"#
        ));
    }

    /// Text in cells of a terminal, for pictures of the screen: it takes exactly `width`, whatever the font.
    #[cfg(test)]
    pub fn cells(
        &mut self,
        (x, y): (f64, f64),
        width: f64,
        (fill, style): (&str, &str),
        text: &str,
    ) {
        let [x, y, width] = [x, y, width].map(number);
        let text = escaped(text);
        self.add(format_args!(
            r#"<text x="{x}" y="{y}" textLength="{width}" lengthAdjust="spacingAndGlyphs" fill="{fill}"{style}>{text}</text>"#
        ));
    }

    /// A line through all points.
    pub fn line(&mut self, points: &[(f64, f64)], stroke: &str, (width, dashes): (f64, &str)) {
        let points: Vec<String> =
            points.iter().map(|(x, y)| format!("{},{}", number(*x), number(*y))).collect();
        let dashes = match dashes {
            "" => String::new(),
            dashes => format!(r#" stroke-dasharray="{dashes}""#),
        };
        self.add(format_args!(
            r#"<polyline points="{}" fill="none" stroke="{stroke}" stroke-width="{}"{dashes}/>"#,
            points.join(" "),
            number(width)
        ));
    }

    /// A filled area.
    pub fn area(&mut self, points: &[(f64, f64)], fill: &str, opacity: f64) {
        let points: Vec<String> =
            points.iter().map(|(x, y)| format!("{},{}", number(*x), number(*y))).collect();
        self.add(format_args!(
            r#"<polygon points="{}" fill="{fill}" fill-opacity="{}"/>"#,
            points.join(" "),
            number(opacity)
        ));
    }

    /// The whole picture; its font is one of these.
    pub fn finish(self, fonts: &str) -> String {
        let [width, height] = [self.width, self.height].map(number);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"{fonts}\" xml:space=\"preserve\">\n{}</svg>\n",
            self.body
        )
    }
}

/// Fonts of charts.
pub const SANS: &str = "Inter, 'DejaVu Sans', Helvetica, Arial, sans-serif";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_tenants_stay_texts() {
        let mut svg = Svg::new(10.0, 20.5);
        svg.text((1.0, 2.256), 12.0, (TEXT, Anchor::End), "<script>\u{1b}&\"");
        svg.rect((0.0, 0.0), (1.0 / 3.0, 1.0), GRID, Some("</title>"));
        let told = svg.finish(SANS);
        assert!(told.contains(r#"text-anchor="end">&lt;script&gt;&amp;&quot;</text>"#), "{told}");
        assert!(
            told.contains(r##"width="0.33" height="1" fill="#2b313a"><title>&lt;/title&gt;<"##)
        );
        assert!(told.starts_with("<svg ") && told.ends_with("</svg>\n"), "{told}");
        assert!(told.contains(r#"x="1" y="2.26""#), "{told}");
    }
}
