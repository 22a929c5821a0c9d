//! No circle of imports among files of different folders.
//!
//! Files of one folder below a crate's root may import each other; the folders must have an order, so that a
//! reader can learn one after the other. The imports are read from the tokens: `crate::`, `super::` and `self::`
//! paths, and paths that begin at a child module. A re-exported name counts as an import of the file that defines
//! it. Tests are left out.

use super::none;
use super::source::{Source, all_sources};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};

type Path = Vec<String>;

/// A crate's modules by their paths; the root's is empty.
type Modules = BTreeMap<Path, Module>;

/// A file, or a module written within one.
#[derive(Default)]
struct Module {
    file: String,
    /// Absolute paths of what it names.
    names: BTreeSet<Path>,
    /// Its `pub use`: the name and its absolute path. A glob's name is `*`.
    exports: Vec<(String, Path)>,
}

/// One crate's files, with the paths of their modules.
fn files<'a>(all: &'a [Source], root: &Source) -> Vec<(Path, &'a Source)> {
    let folder = root.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let inner: Vec<&str> = roots(all)
        .filter(|other| other.path != root.path)
        .filter_map(|other| other.path.rsplit_once('/').map(|(folder, _)| folder))
        .collect();
    let mut found = Vec::new();
    for source in all {
        let Some(rest) = source.path.strip_prefix(folder).and_then(|p| p.strip_prefix('/')) else {
            continue;
        };
        let elsewhere = |other: &&str| {
            other.len() > folder.len() && source.path.starts_with(&format!("{other}/"))
        };
        let mut path: Path = rest.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if inner.iter().any(elsewhere) || path.iter().any(|part| part == "tests") {
            continue;
        }
        if path.last().is_some_and(|last| last == "mod") || source.path == root.path {
            path.pop();
        }
        found.push((path, source));
    }
    found
}

fn roots(all: &[Source]) -> impl Iterator<Item = &Source> {
    let is_root = |path: &str| path.ends_with("/lib.rs") || path.ends_with("/main.rs");
    all.iter().filter(move |source| is_root(&source.path))
}

/// Reads the paths of one module's tokens.
struct Reader<'a> {
    modules: &'a mut Modules,
    known: &'a BTreeSet<Path>,
    file: &'a str,
}

impl Reader<'_> {
    fn read(&mut self, module: &Path, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            if is_test_attribute(&tokens[at..]) {
                at = after_item(&tokens, at + 2);
                continue;
            }
            match &tokens[at] {
                TokenTree::Ident(word) if *word == "mod" => {
                    if let [TokenTree::Ident(name), TokenTree::Group(body), ..] = &tokens[at + 1..]
                    {
                        let inner = [module.clone(), vec![name.to_string()]].concat();
                        self.read(&inner, body.stream());
                        at += 2;
                    }
                }
                TokenTree::Ident(word) if *word == "use" => {
                    let public = at > 0 && is_public(&tokens[..at]);
                    let mut paths = Vec::new();
                    at = tree(&tokens, at + 1, &mut Vec::new(), &mut paths);
                    for (name, path) in paths {
                        self.name(module, path, public.then_some(name));
                    }
                }
                TokenTree::Ident(_)
                    if !follows_path(&tokens[..at]) && starts_path(&tokens[at..]) =>
                {
                    let mut paths = Vec::new();
                    at = tree(&tokens, at, &mut Vec::new(), &mut paths);
                    for (_, path) in paths {
                        self.name(module, path, None);
                    }
                    continue;
                }
                TokenTree::Group(group) => self.read(module, group.stream()),
                _ => {}
            }
            at += 1;
        }
    }

    fn name(&mut self, module: &Path, path: Path, export: Option<String>) {
        let Some(path) = absolute(module, path, self.known) else {
            return;
        };
        let entry = self.modules.entry(module.clone()).or_default();
        entry.file = self.file.to_owned();
        if let Some(name) = export {
            entry.exports.push((name, path.clone()));
        }
        entry.names.insert(path);
    }
}

fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if *ident == word)
}

fn is_mark(token: Option<&TokenTree>, mark: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == mark)
}

fn is_test_attribute(tokens: &[TokenTree]) -> bool {
    match tokens {
        [hash, TokenTree::Group(group), ..] => {
            is_mark(Some(hash), '#') && group.to_string().replace(' ', "") == "[cfg(test)]"
        }
        _ => false,
    }
}

/// The index after an item: behind its semicolon or its body.
fn after_item(tokens: &[TokenTree], from: usize) -> usize {
    for (at, token) in tokens.iter().enumerate().skip(from) {
        let body =
            matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
        if body || is_mark(Some(token), ';') {
            return at + 1;
        }
    }
    tokens.len()
}

/// Whether `pub` or `pub(...)` stands at the end.
fn is_public(before: &[TokenTree]) -> bool {
    match before {
        [.., last] if is_word(last, "pub") => true,
        [.., word, TokenTree::Group(_)] => is_word(word, "pub"),
        _ => false,
    }
}

/// Whether `::` or `.` stands at the end.
fn follows_path(before: &[TokenTree]) -> bool {
    is_mark(before.last(), ':') && is_mark(before.iter().rev().nth(1), ':')
        || is_mark(before.last(), '.')
}

fn starts_path(tokens: &[TokenTree]) -> bool {
    is_mark(tokens.get(1), ':') && is_mark(tokens.get(2), ':')
}

/// Reads a path or a tree of paths, with the name that each gets. Returns the index after it.
fn tree(
    tokens: &[TokenTree],
    mut at: usize,
    head: &mut Path,
    out: &mut Vec<(String, Path)>,
) -> usize {
    let depth = head.len();
    while let Some(token) = tokens.get(at) {
        match token {
            TokenTree::Ident(word) => head.push(word.to_string()),
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let mut from = 0;
                while from < inner.len() {
                    from = tree(&inner, from, head, out) + 1;
                }
                head.truncate(depth);
                return at + 1;
            }
            _ if is_mark(Some(token), '*') => head.push("*".to_owned()),
            _ => break,
        }
        at += 1;
        if !(is_mark(tokens.get(at), ':') && is_mark(tokens.get(at + 1), ':')) {
            break;
        }
        at += 2;
    }
    let mut name = head.last().cloned().unwrap_or_default();
    if let (Some(word), Some(TokenTree::Ident(alias))) = (tokens.get(at), tokens.get(at + 1))
        && is_word(word, "as")
    {
        name = alias.to_string();
        at += 2;
    }
    if head.last().is_some_and(|last| last == "self") && head.len() > 1 {
        head.pop();
        name = head.last().cloned().unwrap_or_default();
    }
    out.push((name, head.clone()));
    head.truncate(depth);
    at
}

/// The path from the crate's root. `None` for another crate's, and for a name that is no path of modules.
fn absolute(module: &Path, path: Path, known: &BTreeSet<Path>) -> Option<Path> {
    let mut base = module.clone();
    let mut rest = path.as_slice();
    match rest.first()?.as_str() {
        "crate" => base.clear(),
        "self" => {}
        "super" => {
            while rest.get(1).is_some_and(|word| word == "super") {
                base.pop();
                rest = &rest[1..];
            }
            base.pop();
        }
        child => {
            base.push(child.to_owned());
            if !known.contains(&base) {
                return None;
            }
        }
    }
    base.extend_from_slice(&rest[1..]);
    Some(base)
}

/// The module that defines what `path` names.
fn definition(modules: &Modules, path: &[String], depth: u8) -> Option<Path> {
    let mut module = Path::new();
    for (at, part) in path.iter().enumerate() {
        let child = [module.as_slice(), std::slice::from_ref(part)].concat();
        if modules.contains_key(&child) {
            module = child;
            continue;
        }
        let exports = &modules.get(&module)?.exports;
        let target = exports.iter().find(|(name, _)| name == part);
        if let Some((_, target)) = target.filter(|_| depth < 8) {
            let target = [target.as_slice(), &path[at + 1..]].concat();
            return definition(modules, &target, depth + 1);
        }
        break;
    }
    Some(module)
}

/// The modules of a crate, by their paths.
fn modules(files: &[(Path, &Source)]) -> Modules {
    let known: BTreeSet<Path> = files.iter().map(|(path, _)| path.clone()).collect();
    let mut modules = Modules::new();
    for (path, source) in files {
        modules.entry(path.clone()).or_default().file.clone_from(&source.path);
        let tokens = source.text.parse().unwrap_or_else(|error| panic!("{}: {error}", source.path));
        let mut reader = Reader { modules: &mut modules, known: &known, file: &source.path };
        reader.read(path, tokens);
    }
    modules
}

/// The files that each file imports from.
fn imports(modules: &Modules) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut imports: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for module in modules.values() {
        let defined = module.names.iter().filter_map(|name| definition(modules, name, 0));
        let files = defined.map(|defined| modules[&defined].file.as_str());
        let others = files.filter(|file| *file != module.file);
        imports.entry(&module.file).or_default().extend(others);
    }
    imports
}

/// The files that can be reached from `from` over imports.
fn reached<'a>(imports: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = imports[from].iter().copied().collect();
    while let Some(file) = open.pop() {
        if reached.insert(file) {
            open.extend(&imports[file]);
        }
    }
    reached
}

/// The imports of the crate of `top` that close a circle among folders.
fn circles(all: &[Source], top: &Source) -> Vec<String> {
    let folder = top.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    // the folder below the crate's root to which a file belongs: `pick` for `pick/mod.rs` and for `pick.rs`
    // beside a folder of that name, the empty name for a file of the root
    let room = |file: &'_ str| {
        let rest = &file[folder.len() + 1..];
        let (room, is_file) = match rest.split_once('/') {
            Some((room, _)) => (room, false),
            None => (rest.trim_end_matches(".rs"), true),
        };
        let inside = format!("{folder}/{room}/");
        let has_folder = !is_file || all.iter().any(|source| source.path.starts_with(&inside));
        if has_folder { room.to_owned() } else { String::new() }
    };
    let modules = modules(&files(all, top));
    let imports = imports(&modules);
    let reach: BTreeMap<&str, _> =
        imports.keys().map(|file| (*file, reached(&imports, file))).collect();
    let mut found = Vec::new();
    for (file, targets) in &imports {
        for target in targets {
            if room(file) != room(target) && reach[target].contains(file) {
                found.push(format!("{file} -> {target}"));
            }
        }
    }
    found
}

#[test]
fn no_circle_is_longer_than_a_folder() {
    let all = all_sources();
    let tops = roots(&all).filter(|top| !top.path.starts_with("tests/"));
    let broken = tops.flat_map(|top| circles(&all, top)).collect();
    none("an import that closes a circle among folders", broken);
}

/// The rule sees circles through `super`, trees, re-exports and plain paths, and none within a folder or a test.
#[test]
fn circles_are_found() {
    let source =
        |(path, text): (&str, &str)| Source { path: path.to_owned(), text: text.to_owned() };
    let found = |files: &[(&str, &str)]| {
        let all: Vec<Source> = files.iter().copied().map(source).collect();
        circles(&all, &all[0])
    };
    let root = ("x/lib.rs", "mod a; mod b;");
    let a = ("x/a/mod.rs", "mod c; pub use c::Name; fn f() { super::b::g() }");
    let c = ("x/a/c.rs", "use super::f; pub struct Name;");
    let both = ["x/a/mod.rs -> x/b.rs", "x/b.rs -> x/a/mod.rs"];
    assert_eq!(found(&[root, a, c, ("x/b.rs", "use crate::{a::{self, f}};")]), both);
    let through = ["x/a/mod.rs -> x/b.rs", "x/b.rs -> x/a/c.rs"];
    assert_eq!(found(&[root, a, c, ("x/b.rs", "fn g() -> crate::a::Name {}")]), through);
    assert!(found(&[root, a, c, ("x/b.rs", "#[cfg(test)] mod t { use crate::a::f; }")]).is_empty());
    assert!(found(&[root, a, c, ("x/b.rs", "use other::a::f;")]).is_empty());
}
