//! Podman and CRI-O: whole files in their drop-in directories.

use super::file;
use super::part::{NAME, Wish, is_nvidia};
use super::toml::{Read, set_text, table_at};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, Table, value};

/// The shipped registration for `hooks.d`.
const HOOK: &str = include_str!("../../../packaging/hooks/gpuslice.json");
/// The distribution's part of podman's configuration.
const SHARED: &str = "/usr/share/containers";
/// The hook's path in it.
const SHIPPED: &str = "\"/usr/libexec/gpuslice/gpuslice-hook\"";
const ARGUMENTS: &str = "\"args\": [\"gpuslice-hook\"]";

/// Podman's registration of the hook, which podman then calls at every container start.
///
/// # Errors
/// None for any path.
pub fn hooks_d(hook: &Path, runtime_dir: Option<&Path>) -> Result<String> {
    let mut words = vec!["gpuslice-hook".to_owned()];
    if let Some(dir) = runtime_dir {
        words.extend(["--runtime-dir".to_owned(), dir.display().to_string()]);
    }
    let hook = serde_json::to_string(&hook.display().to_string())?;
    let words = format!("\"args\": {}", serde_json::to_string(&words)?);
    Ok(HOOK.replace(SHIPPED, &hook).replace(ARGUMENTS, &words))
}

/// The hook directories that podman reads, by its configuration. The default is one directory of the
/// distribution's; podman does not read the one below /etc that manuals mention.
///
/// # Errors
/// Podman could not read a configuration file.
pub fn hooks_dirs(config: &Path) -> Result<Vec<PathBuf>> {
    let mut files =
        vec![PathBuf::from(SHARED).join("containers.conf"), config.join("containers.conf")];
    files.extend(files_of(&config.join("containers.conf.d"), "conf")?);
    let mut dirs = vec![PathBuf::from(SHARED).join("oci/hooks.d")];
    for path in files {
        let text = file::read(&path)?.unwrap_or_default();
        let list = Read::parse(&text).and_then(|read| {
            let list = read.list(&["engine", "hooks_dir"])?;
            Ok(list.map(|list| list.iter().map(PathBuf::from).collect()))
        });
        if let Some(list) = list.with_context(|| path.display().to_string())? {
            dirs = list;
        }
    }
    match dirs.is_empty() {
        true => {
            bail!("podman's hooks_dir is an empty list, so it calls no hook; remove the line")
        }
        false => Ok(dirs),
    }
}

/// Podman's list of runtimes: `podman run --runtime gpuslice`.
///
/// # Errors
/// None for any name.
pub fn containers_conf(wish: &Wish) -> Result<String> {
    let mut document = headed("podman");
    let mut programs = toml_edit::Array::new();
    programs.push(&wish.program);
    table_at(&mut document, &["engine", "runtimes"])?.insert(NAME, value(programs));
    Ok(document.to_string())
}

/// CRI-O's runtime handler, a copy of the node's default one.
///
/// # Errors
/// CRI-O could not read a configuration file.
pub fn crio(dir: &Path, wish: &Wish) -> Result<String> {
    let (mut handler, program) = match model(dir)? {
        Some((table, path)) if is_nvidia(&path) => (table, path),
        Some((table, _)) => (table, wish.program.clone()),
        None => (Table::new(), wish.program.clone()),
    };
    handler.insert("runtime_path", value(program));
    handler.insert("runtime_type", value("oci"));
    let mut document = headed("crio");
    if wish.default {
        let runtime = table_at(&mut document, &["crio", "runtime"])?;
        set_text(runtime, "default_runtime", NAME);
    }
    let runtimes = table_at(&mut document, &["crio", "runtime", "runtimes"])?;
    runtimes.insert(NAME, Item::Table(handler));
    Ok(document.to_string())
}

/// NVIDIA's runtime, if it would call gpuslice-runtime in CRI-O's handler.
///
/// # Errors
/// As [`crio`].
pub fn crio_behind(dir: &Path) -> Result<Option<String>> {
    Ok(model(dir)?.map(|(_, path)| path).filter(|path| is_nvidia(path)))
}

/// The program that gpuslice-runtime takes the place of in CRI-O's handler.
///
/// # Errors
/// As [`crio`].
pub fn crio_replaced(dir: &Path) -> Result<Vec<String>> {
    Ok(model(dir)?.map(|(_, path)| path).filter(|path| !is_nvidia(path)).into_iter().collect())
}

/// The handler to copy, and its program: NVIDIA's, else the default one.
fn model(dir: &Path) -> Result<Option<(Table, String)>> {
    let (mut default, mut all) = ("crun".to_owned(), Vec::new());
    for path in crio_files(dir)? {
        let named = || path.display().to_string();
        let text = file::read(&path)?.unwrap_or_default();
        let read = Read::parse(&text).with_context(named)?;
        let above = ["crio", "runtime"];
        if let Some(name) =
            read.text(&[&above[..], &["default_runtime"]].concat()).with_context(named)?
        {
            name.clone_into(&mut default);
        }
        let runtimes = read.table(&["crio", "runtime", "runtimes"]).with_context(named)?;
        for (name, item) in runtimes.into_iter().flat_map(|table| table.iter()) {
            if let Some(table) = item.as_table_like().filter(|_| name != NAME) {
                let program = table.get("runtime_path").and_then(Item::as_str);
                // Without a path CRI-O looks for the handler's name in PATH.
                let program = program.filter(|it| !it.is_empty()).unwrap_or(name).to_owned();
                all.push((name.to_owned(), super::containerd::plain(table), program));
            }
        }
    }
    let rank = |(name, _, program): &(String, Table, String)| match is_nvidia(program) {
        true => 2,
        false => u8::from(*name == default),
    };
    all.retain(|handler| rank(handler) > 0);
    let best = all.into_iter().max_by_key(rank);
    Ok(best.map(|(_, table, program)| (table, program)))
}

/// CRI-O's configuration files except gpuslice's, in the order in which it reads them.
fn crio_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = files_of(&dir.join("crio.conf.d"), "")?;
    found.retain(|path| !path.ends_with(CRIO_FILE));
    found.insert(0, dir.join("crio.conf"));
    Ok(found)
}

/// The files of a drop-in directory with this suffix, in order.
fn files_of(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if dir.is_dir() {
        for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
            let path = entry?.path();
            let is_one = path.extension().is_some_and(|found| found == extension);
            if path.is_file() && (extension.is_empty() || is_one) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Name of gpuslice's drop-in.
pub const CRIO_FILE: &str = "99-gpuslice.toml";

fn headed(engine: &str) -> DocumentMut {
    let mut document = DocumentMut::new();
    let head = format!(
        "# Written by gpuslice setup {engine}; gpuslice setup {engine} --undo removes it.\n"
    );
    document.decor_mut().set_prefix(head);
    document
}

#[cfg(test)]
mod tests {
    use super::super::part::tests::wish;
    use super::*;

    #[test]
    fn podmans_files() {
        let text = hooks_d(Path::new("/opt/a \"b\"/gpuslice-hook"), Some(Path::new("/x")));
        let text: serde_json::Value = serde_json::from_str(&text.expect("JSON")).expect("JSON");
        assert_eq!(text["hook"]["path"], "/opt/a \"b\"/gpuslice-hook");
        let words = serde_json::json!(["gpuslice-hook", "--runtime-dir", "/x"]);
        assert_eq!(text["hook"]["args"], words);
        assert!(text["when"].get("always").is_none());
        let same = hooks_d(Path::new("/usr/libexec/gpuslice/gpuslice-hook"), None);
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(value(&same.expect("JSON")), value(HOOK));
        let conf = containers_conf(&wish(false)).expect("TOML");
        let (head, rest) = conf.split_once('\n').expect("lines");
        assert!(head.starts_with("# Written by"), "{head}");
        assert_eq!(rest, "[engine.runtimes]\ngpuslice = [\"/usr/bin/gpuslice-runtime\"]\n");
    }

    #[test]
    fn podman_says_where_it_looks_for_hooks() {
        let dir = tempfile::tempdir().expect("a directory");
        let found = || hooks_dirs(dir.path()).map_err(|error| format!("{error:#}"));
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, text).expect("written");
        };
        write("containers.conf", "[engine]\nhooks_dir = [\"/a\", \"/b\"]\n");
        assert_eq!(found(), Ok(vec!["/a".into(), "/b".into()]));
        write("containers.conf.d/10-x.conf", "[engine]\nhooks_dir = [\"/c\"]\n");
        write("containers.conf.d/20-y.conf.bak", "broken");
        assert_eq!(found(), Ok(vec!["/c".into()]));
        write("containers.conf.d/20-y.conf", "[engine]\nhooks_dir = []\n");
        assert!(found().is_err_and(|said| said.contains("empty list")));
        write("containers.conf.d/20-y.conf", "[engine]\nhooks_dir = 1\n");
        assert!(found().is_err_and(|said| said.contains("20-y.conf: line 2")));
    }

    #[test]
    fn crios_handler_is_like_the_default_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let text = crio(dir.path(), &wish(false)).expect("none there");
        let ours = "[crio.runtime.runtimes.gpuslice]\n\
                    runtime_path = \"/usr/bin/gpuslice-runtime\"\nruntime_type = \"oci\"\n";
        assert!(text.ends_with(ours), "{text}");
        let drop_ins = dir.path().join("crio.conf.d");
        fs::create_dir(&drop_ins).expect("a directory");
        let crun = "[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\n\
                    runtime_path = \"/usr/libexec/crio/crun\"\nmonitor_path = \"/usr/libexec/crio/conmon\" # theirs\n";
        fs::write(drop_ins.join("10-crun.conf"), crun).expect("written");
        let text = crio(dir.path(), &wish(true)).expect("good");
        let expected = "[crio.runtime]\ndefault_runtime = \"gpuslice\"\n\n\
                        [crio.runtime.runtimes.gpuslice]\nruntime_path = \"/usr/bin/gpuslice-runtime\"\n\
                        monitor_path = \"/usr/libexec/crio/conmon\"\nruntime_type = \"oci\"\n";
        assert!(text.ends_with(expected), "{text}");
        let nvidia = "[crio.runtime.runtimes.nvidia]\nruntime_path = \"/usr/bin/nvidia-container-runtime\"\n";
        fs::write(drop_ins.join("99-nvidia.toml"), nvidia).expect("written");
        let text = crio(dir.path(), &wish(false)).expect("good");
        assert!(text.contains("runtime_path = \"/usr/bin/nvidia-container-runtime\""), "{text}");
        assert!(crio_behind(dir.path()).expect("good").is_some());
        fs::write(drop_ins.join(CRIO_FILE), "broken").expect("written");
        assert_eq!(crio(dir.path(), &wish(false)).expect("ours is not read"), text);
        fs::write(drop_ins.join("50-x"), "a = [\n").expect("written");
        assert!(crio(dir.path(), &wish(false)).is_err());
    }
}
