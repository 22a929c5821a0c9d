//! The words of the tree: names and sentences that an engineer of the field knows at first sight.
//!
//! A sentence names the container, process, thread or value that it is about, and is short. The rules read
//! comments of Rust, Python, shell and configuration files, and the paragraphs of Markdown files.

use super::{none, source};
use std::path::Path;

/// Words in a sentence, at most.
const WORDS_MAX: usize = 35;

/// They stand for a container, process, thread or caller that has a name.
const STAND_INS: [&str; 6] = ["somebody", "nobody", "anybody", "everybody", "whoever", "whom"];

/// After *who* they make a stand-in of it.
const AFTER_WHO: [&str; 14] = [
    "is", "was", "has", "had", "wants", "may", "gets", "waits", "asks", "goes", "holds", "takes",
    "comes", "launches",
];

/// Names of the first versions, which nothing in the tree has any more.
const OLD_NAMES: [&str; 24] = [
    "door",
    "doors",
    "wall",
    "walls",
    "truth",
    "mirror",
    "twin",
    "squeeze",
    "pot",
    "book",
    "breadth",
    "marks",
    "loose",
    "knot",
    "thaw",
    "hold",
    "allowance",
    "lever",
    "levers",
    "deaf",
    "crowd",
    "lay",
    "manners",
    "leave",
];

/// A sentence of a comment or document.
struct Sentence {
    /// File, and the line where its paragraph begins.
    at: String,
    text: String,
}

/// The text of a comment line; `None` for any other line, and for one of a table.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let marks = ["//!", "///", "//", "#!", "#"];
    let text = marks.iter().find_map(|mark| line.strip_prefix(mark))?;
    let code = line.starts_with("#[") || line.starts_with("#![") || text.contains("SAFETY");
    (!code && !text.trim().starts_with('|')).then(|| text.trim())
}

/// The text of a line of a Markdown paragraph or list.
fn paragraph(line: &str) -> Option<&str> {
    let other = ["|", "```", "#", "    "];
    let text = line.trim();
    (!text.is_empty() && !other.iter().any(|it| line.starts_with(it))).then_some(text)
}

/// The sentences of a file: paragraphs, cut at full stops, colons and the like.
fn sentences(path: &str, text: &str) -> Vec<Sentence> {
    let prose = match path.ends_with(".md") {
        true => paragraph,
        false => comment,
    };
    let (mut all, mut block, mut fenced) = (Vec::new(), (0, String::new()), false);
    for (number, line) in text.lines().chain([""]).enumerate() {
        let part = prose(line);
        fenced ^= part.is_some_and(|text| text.starts_with("```")) || line.starts_with("```");
        match part.filter(|text| !fenced && !text.is_empty() && !text.starts_with("```")) {
            Some(text) => {
                if block.1.is_empty() {
                    block.0 = number + 1;
                }
                block.1.push_str(text);
                block.1.push(' ');
            }
            None => {
                let (line, text) = std::mem::take(&mut block);
                let at = format!("{path}:{line}");
                all.extend(cut(&text).map(|text| Sentence { at: at.clone(), text }));
            }
        }
    }
    all
}

fn cut(text: &str) -> impl Iterator<Item = String> {
    let ends = ['.', ':', ';', '!', '?'];
    let mut all = vec![String::new()];
    for word in text.split_whitespace() {
        let last = all.last_mut().expect("one at least");
        last.push_str(word);
        last.push(' ');
        if word.trim_end_matches(['*', ')']).ends_with(ends) {
            all.push(String::new());
        }
    }
    all.into_iter().filter(|sentence| !sentence.is_empty())
}

fn all_sentences() -> Vec<Sentence> {
    let ends = ["rs", "md", "toml", "py", "sh", "service"];
    let wanted = |path: &str| {
        let end = Path::new(path).extension().and_then(|end| end.to_str());
        end.is_some_and(|end| ends.contains(&end)) && path != "CHANGELOG.md"
    };
    let files = source::all_files().into_iter().filter(|path| wanted(path));
    files.flat_map(|path| sentences(&path, &source::read(&path))).collect()
}

/// The stand-in of a sentence. `nobody` in backquotes, a user of a Unix system, is none.
fn stand_in(sentence: &str) -> Option<String> {
    let plain = |word: &str| {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric() && c != '`');
        word.to_lowercase()
    };
    let words: Vec<String> = sentence.split_whitespace().map(plain).collect();
    let who =
        words.windows(2).find(|pair| pair[0] == "who" && AFTER_WHO.contains(&pair[1].as_str()));
    let found = words.iter().find(|word| STAND_INS.contains(&word.as_str()));
    found.cloned().or(who.map(|pair| pair.join(" ")))
}

#[test]
fn sentences_name_what_they_are_about() {
    let stands = |it: Sentence| Some(format!("{}: {}", it.at, stand_in(&it.text)?));
    let broken = all_sentences().into_iter().filter_map(stands).collect();
    none("a sentence names its container, process, thread or value", broken);
}

#[test]
fn sentences_are_short() {
    let words = |it: &Sentence| it.text.split_whitespace().count();
    let long = all_sentences().into_iter().filter(|it| words(it) > WORDS_MAX);
    let broken = long.map(|it| format!("{}: {} words: {}", it.at, words(&it), it.text));
    none("a sentence has at most 35 words", broken.collect());
}

#[test]
fn files_have_the_fields_names() {
    let old = |path: &String| {
        if path == "docs/book.toml" {
            return false; // mdbook's own name
        }
        let parts = Path::new(path).with_extension("");
        let mut names = parts.iter().filter_map(|part| part.to_str());
        names.any(|name| OLD_NAMES.contains(&name))
    };
    let broken = source::all_files().into_iter().filter(old).collect();
    none("a file or folder has a name of the old vocabulary", broken);
}

/// The rules find what they look for.
#[test]
fn stand_ins_and_long_sentences_are_found() {
    let file = "//! Nobody waits. A caller\n//! waits\n//!\n//! for: a turn\nfn who() {}\n";
    let found = sentences("a.rs", file);
    let texts: Vec<&str> = found.iter().map(|it| it.text.trim()).collect();
    assert_eq!(texts, ["Nobody waits.", "A caller waits", "for:", "a turn"]);
    assert_eq!(stand_in(texts[0]).as_deref(), Some("nobody"));
    assert_eq!(stand_in("one who waits, waits").as_deref(), Some("who waits"));
    assert_eq!(stand_in("`nobody` is a user"), None);
    assert_eq!(found[2].at, "a.rs:4");
    let text = "```\nwho is it?\n```\nA list\n| who is in a table |\n";
    let found = sentences("a.md", text);
    assert_eq!(found.len(), 1, "code and tables are not read");
}
