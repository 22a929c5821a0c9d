//! The note of a slice's owner, beside its record: the container as Kubernetes names it. It informs only.

use gpuslice_wire::owner::Owner;
use gpuslice_wire::text::Text;
use std::fs;
use std::path::Path;

/// The note's name in a container's directory.
pub const NOTE: &str = "owner";

/// The note of an owner that is known.
pub fn note(owner: &Owner) -> Option<String> {
    let Owner { namespace, pod, uid, container } = owner;
    // No text has a newline.
    let lines = || format!("namespace {namespace}\npod {pod}\nuid {uid}\ncontainer {container}\n");
    (!owner.is_empty()).then(lines)
}

/// Reads the note; of a part that is missing or malformed nothing is known.
pub fn noted(dir: &Path) -> Owner {
    let note = fs::read_to_string(dir.join(NOTE)).unwrap_or_default();
    parse(&note)
}

fn parse(note: &str) -> Owner {
    fn value<const N: usize>(note: &str, key: &str) -> Text<N> {
        let mut lines = note.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        lines.next().and_then(|value| Text::new(value).ok()).unwrap_or_default()
    }
    Owner {
        namespace: value(note, "namespace"),
        pod: value(note, "pod"),
        uid: value(note, "uid"),
        container: value(note, "container"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_read_back_and_a_damaged_note_names_none() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(noted(dir.path()).is_empty());
        let owner = Owner {
            namespace: Text::new("default").expect("short"),
            pod: Text::new("web-0").expect("short"),
            uid: Text::EMPTY,
            container: Text::new("main").expect("short"),
        };
        assert_eq!(note(&Owner::default()), None);
        let lines = note(&owner).expect("it is known");
        fs::write(dir.path().join(NOTE), lines).expect("written");
        assert_eq!(noted(dir.path()), owner);
        let long = format!("pod {}\n", "x".repeat(300));
        for damaged in ["", "pod", "podweb", "pod \u{202e}\n", &long, "\0"] {
            assert!(parse(damaged).is_empty(), "{damaged:?}");
        }
    }

    #[test]
    fn any_note_has_one_meaning() {
        gpuslice_fuzz::fuzz!("owners", |bytes| {
            let owner = parse(&String::from_utf8_lossy(bytes));
            assert_eq!(parse(&note(&owner).unwrap_or_default()), owner);
        });
    }
}
