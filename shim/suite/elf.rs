//! What a library says of itself to the loader, read by the machine's own `readelf`-like eyes: `nm` and
//! `readelf` of binutils, which every C compiler brings.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

fn output(program: &str, args: &[&str], library: &Path) -> String {
    let output = Command::new(program).args(args).arg(library).output().expect("binutils");
    assert!(output.status.success(), "{program} {}", library.display());
    String::from_utf8(output.stdout).expect("text")
}

/// Names of the defined dynamic symbols.
pub fn exports(library: &Path) -> BTreeSet<String> {
    let text = output("nm", &["--dynamic", "--defined-only", "--format=posix"], library);
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// Names that the loader must find elsewhere.
pub fn imports(library: &Path) -> BTreeSet<String> {
    let text = output("nm", &["--dynamic", "--undefined-only", "--format=posix"], library);
    text.lines().filter_map(|line| line.split([' ', '@']).next()).map(str::to_owned).collect()
}

/// SONAME and needed libraries.
pub fn names(library: &Path) -> (String, Vec<String>) {
    let text = output("readelf", &["--dynamic", "--wide"], library);
    let of = |tag: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.contains(tag));
        let bracketed = lines.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0));
        bracketed.map(str::to_owned).collect()
    };
    (of("(SONAME)").join(" "), of("(NEEDED)"))
}

/// Asserts that a library needs nothing but libc, the loader and `also`, and stands for `soname`.
pub fn is_lean(library: &Path, soname: &str, also: &[&str]) {
    let (is, needed) = names(library);
    assert_eq!(is, soname);
    let foreign = |name: &&String| !["libc.so.6", "ld-linux-x86-64.so.2"].contains(&name.as_str());
    assert_eq!(needed.iter().filter(foreign).collect::<Vec<_>>(), also);
}
