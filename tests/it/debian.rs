//! `packaging/debian-mirror`: where programs for tests come from.

use crate::harness::skip;
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const PUBLIC: &str = "http://deb.debian.org/debian";

/// A machine: its release, the sources of its apt, and the lists that apt has read, by name.
fn mirror(system: &str, sources: &str, lists: &[(&str, &str)]) -> String {
    let dir = TempDir::new().expect("a directory");
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(&path, text).expect("written");
        path
    };
    let system = write("os-release", system);
    let sources = write("sources.list", sources);
    write("lists/partial/none", "");
    for (name, text) in lists {
        write(&format!("lists/{name}"), text);
    }
    let conf = write(
        "conf",
        &format!(
            "Dir::Etc::sourcelist {sources:?};\nDir::Etc::sourceparts \"-\";\nDir::State::lists {:?};\n",
            dir.path().join("lists")
        ),
    );
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/debian-mirror");
    let output = Command::new(program).env("APT_CONFIG", conf).env("OS_RELEASE", system).output();
    let output = output.expect("it starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
}

#[test]
fn the_machines_own_mirror_is_taken() {
    if Command::new("apt-get").arg("--version").output().is_err() {
        return skip("the_machines_own_mirror_is_taken", "no apt-get here");
    }
    let debian = "ID=debian\nVERSION_CODENAME=bookworm\n";
    let ubuntu = "ID=ubuntu\nVERSION_CODENAME=jammy\n";
    let security = "deb http://m.example/security bookworm-security main\n";
    let own = "deb http://mirror.example/d bookworm main\n";
    let later = format!("{own}deb http://other.example/d bookworm main\n");
    let of =
        |label: &str| ("mirror.example_d_dists_bookworm_InRelease", format!("Label: {label}\n"));
    let (third, debians) = (of("Vendor"), of("Debian"));
    for (system, sources, list, expected) in [
        (debian, "", None, PUBLIC),
        (debian, security, None, PUBLIC),
        (debian, &format!("{security}{own}"), None, "http://mirror.example/d"),
        (debian, &later, Some(&third), "http://other.example/d"),
        (debian, "deb http://mirror.example/d stable main\n", None, PUBLIC),
        (ubuntu, "deb http://mirror.example/u jammy main\n", None, PUBLIC),
        (ubuntu, own, None, PUBLIC),
        (ubuntu, own, Some(&debians), "http://mirror.example/d"),
    ] {
        let lists: Vec<(&str, &str)> = list.into_iter().map(|it| (it.0, it.1.as_str())).collect();
        assert_eq!(mirror(system, sources, &lists), expected, "{sources}");
    }
}
