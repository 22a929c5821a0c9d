//! NVIDIA's container runtime: the list of low-level runtimes that it calls.
//!
//! Where an engine calls NVIDIA's runtime, that one calls gpuslice-runtime, which calls runc. NVIDIA's
//! runtime has then put the driver into the container before gpuslice's hook looks for it. NVIDIA's
//! runtime calls the first existing program of the list, so gpuslice-runtime comes first and the others stay.

use super::part::{PROGRAM, Part, Wish};
use super::toml::{Read, table_at};
use anyhow::Result;
use std::path::Path;
use toml_edit::{Array, Value, value};

/// Key of the list.
const LIST: [&str; 2] = ["nvidia-container-runtime", "runtimes"];
/// The default list.
const USUAL: [&str; 2] = ["runc", "crun"];

/// gpuslice's part of `/etc/nvidia-container-runtime/config.toml`.
pub struct Nvidia;

fn is_ours(program: &str) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == PROGRAM)
}

/// Puts gpuslice-runtime first; keeps spaces, lines and comments of the others.
fn put_first(all: &mut Array, program: &str) {
    let mut ours = Value::from(program);
    if let Some(first) = all.get_mut(0) {
        let lead = lead(first);
        if lead.is_empty() {
            first.decor_mut().set_prefix(" ");
        }
        ours.decor_mut().set_prefix(lead);
    }
    all.insert_formatted(0, ours);
}

fn without_ours(all: &mut Array) {
    let place = |all: &Array| {
        let mut entries = all.iter();
        entries.position(|entry| entry.as_str().is_some_and(is_ours))
    };
    while let Some(at) = place(all) {
        let lead = lead(&all.remove(at));
        if let Some(next) = all.get_mut(at).filter(|_| at == 0) {
            next.decor_mut().set_prefix(lead);
        }
    }
}

/// The text before an entry.
fn lead(entry: &Value) -> String {
    let prefix = entry.decor().prefix().and_then(|raw| raw.as_str());
    prefix.unwrap_or_default().to_owned()
}

/// The programs that gpuslice-runtime takes the place of: the first one that exists is called now.
///
/// # Errors
/// It is not TOML, or the list is none.
pub fn replaced(text: &str) -> Result<Vec<String>> {
    let read = Read::parse(text)?;
    let list = read.list(&LIST)?.unwrap_or_else(|| USUAL.to_vec());
    Ok(list.into_iter().filter(|it| !is_ours(it)).map(str::to_owned).collect())
}

impl Part for Nvidia {
    fn put(&self, text: &str, wish: &Wish) -> Result<String> {
        let read = Read::parse(text)?;
        let list = read.list(&LIST)?;
        if list.as_ref().and_then(|list| list.first()) == Some(&wish.program.as_str()) {
            return Ok(text.to_owned());
        }
        let is_new = list.is_none();
        let mut document = read.into_mut();
        let table = table_at(&mut document, &LIST[..1])?;
        let all = table.entry(LIST[1]).or_insert(value(Array::new()));
        if let Some(all) = all.as_array_mut() {
            without_ours(all);
            put_first(all, &wish.program);
            if is_new {
                all.extend(USUAL);
            }
        }
        Ok(document.to_string())
    }

    fn find(&self, text: &str) -> Result<Option<Wish>> {
        let read = Read::parse(text)?;
        let list = read.list(&LIST)?.unwrap_or_default();
        let ours = list.into_iter().find(|program| is_ours(program));
        Ok(ours.map(|program| Wish { program: program.to_owned(), default: false, cdi: false }))
    }

    fn take_out(&self, text: &str, _: Option<&str>) -> Result<Option<String>> {
        let mut document = Read::parse(text)?.into_mut();
        let table = table_at(&mut document, &LIST[..1])?;
        if let Some(all) = table.get_mut(LIST[1]).and_then(|item| item.as_array_mut()) {
            without_ours(all);
        }
        Ok(Some(document.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::part::{tests::wish, undo};
    use super::*;

    #[test]
    fn ours_comes_first_and_the_others_stay() {
        let text = "# toolkit\n[nvidia-container-runtime]\n#debug = \"/x\"\n\
                    runtimes = [\"runc\", \"crun\"] # in this order\nmode = \"auto\"\n";
        let put = Nvidia.put(text, &wish(false)).expect("good");
        let list = "[\"/usr/bin/gpuslice-runtime\", \"runc\", \"crun\"]";
        assert_eq!(put, text.replace("[\"runc\", \"crun\"]", list));
        assert_eq!(Nvidia.put(&put, &wish(false)).expect("again"), put);
        let undone = undo(&Nvidia, &put, Some(text)).expect("good").expect("ours");
        assert_eq!(undone.text.as_deref(), Some(text));
        let since = put.replace("auto", "cdi");
        let undone = undo(&Nvidia, &since, Some(text)).expect("good").expect("ours");
        assert_eq!(undone.text, Some(text.replace("auto", "cdi")));
        // Another path of gpuslice-runtime replaces the first.
        let moved = put.replace("/usr/bin/", "/opt/");
        assert_eq!(Nvidia.put(&moved, &wish(false)).expect("good"), put);
        let lines = text.replace("\"runc\", ", "\n  \"runc\", # first\n  ");
        let put = Nvidia.put(&lines, &wish(false)).expect("good");
        assert!(
            put.contains("[\n  \"/usr/bin/gpuslice-runtime\",\n  \"runc\", # first\n"),
            "{put}"
        );
        let undone = undo(&Nvidia, &put, None).expect("good").expect("ours");
        assert_eq!(undone.text, Some(lines));
        let put = Nvidia.put("", &wish(false)).expect("good");
        assert!(put.contains("[\"/usr/bin/gpuslice-runtime\", \"runc\", \"crun\"]"), "{put}");
    }
}
