//! The node as `gpuslice ps`, `gpus` and `set` show and name it: columns by name, GPUs by index and UUID, slices by
//! name, id and the beginning of an id.

use super::gpuslice;
use crate::harness::node::{Node, denied, id};
use gpuslice_wire::admin::{Admission, Answer, Command as Admin};
use gpuslice_wire::text::Name;
use gpuslice_wire::units::{Bytes, GIB};
use serde_json::Value;

/// A node with a slice of GPU 1 for the container `c0ffee`, named `web server`.
pub fn node() -> Node {
    let node = Node::start();
    let memory = gpuslice_wire::admin::MemoryAsk::Exactly(Bytes(GIB));
    let Admin::Admit { asked } = crate::harness::node::admit("c0ffee0123456789", "1", memory)
    else {
        panic!("an admission");
    };
    let name = Name::new("web server").expect("a name");
    let answer = node.admin().ask(&Admin::Admit { asked: Admission { name, ..asked } });
    assert!(matches!(answer, Answer::Admitted { .. }), "{answer:?}");
    node
}

/// Success, and all that it says.
pub fn run(node: &Node, words: &[&str]) -> (bool, String) {
    let mut command = gpuslice();
    let output = command.args(words).arg("--runtime-dir").arg(node.runtime_dir()).output();
    let output = output.expect("it starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("text"))
}

fn json(node: &Node, words: &[&str]) -> Value {
    let (fine, text) = run(node, words);
    assert!(fine, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn columns_are_chosen() {
    let node = node();
    let (_, wide) = run(&node, &["ps", "--wide"]);
    assert_eq!(run(&node, &["ps", "-o", "wide"]).1, wide);
    let lines: Vec<&str> = wide.lines().collect();
    assert!(
        lines[0].contains(" PROCS ID ")
            && lines[0].contains(" LAST REFUSED ")
            && lines[0].ends_with(" POD"),
        "{wide}"
    );
    assert!(lines[1].starts_with("web server ") && lines[1].contains(" c0ffee012345 "), "{wide}");
    let (_, some) = run(&node, &["ps", "-o", "id,why,NAME"]);
    assert!(some.starts_with("ID           WHY                          NAME\n"), "{some}");
    assert!(some.contains("\nc0ffee012345 no process                   web server"), "{some}");
    let slices = json(&node, &["ps", "-o", "json"])["slices"].clone();
    assert_eq!(slices[0]["container"], "c0ffee0123456789");
    for (words, why) in [
        (
            &["ps", "-o", "NAME,nosuch"][..],
            "no column is called \"nosuch\"; the columns are: NAME, ",
        ),
        (&["ps", "-o", "json", "--wide"], "cannot be used with"),
        (&["ps", "-o", "json", "--watch"], "--watch shows a table, not JSON"),
    ] {
        let (fine, said) = run(&node, words);
        assert!(!fine && said.contains(why), "{words:?}: {said}");
    }
}

#[test]
fn each_gpu_has_a_row() {
    let node = node();
    let (fine, text) = run(&node, &["gpus"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(fine && lines.len() == 3, "{text}");
    assert!(lines[0].starts_with("GPU PRODUCT ") && lines[0].ends_with(" SLICES"), "{text}");
    assert!(
        lines[2].starts_with("  1 ") && lines[2].ends_with(" 0.0%      1  simulated"),
        "{text}"
    );
    let all = json(&node, &["gpus", "--json"]);
    let [free, busy] = [&all["gpus"][0], &all["gpus"][1]];
    assert_eq!((&free["memory_free"], &free["slices"]), (&(16 * GIB).into(), &0.into()));
    assert_eq!((&busy["memory_free"], &busy["memory_promised"]), (&(15 * GIB).into(), &GIB.into()));
    assert_eq!((&busy["simulated"], &busy["policy"]), (&true.into(), &"soft".into()));
    let product = busy["product"].as_str().expect("a text");
    assert!(!product.is_empty() && lines[2].contains(product), "{all}");
    assert_eq!(json(&node, &["ps", "--json"])["gpus"][1]["product"], product);
}

#[test]
fn names_and_ids_are_taken_alike() {
    let node = node();
    let uuid = json(&node, &["gpus", "--json"])["gpus"][1]["uuid"].as_str().expect("it").to_owned();
    for (name, gpu) in [("web server", "1"), ("c0ffee0123456789", &*uuid), ("c0f", &uuid)] {
        let (fine, said) = run(&node, &["set", name, "--memory", "2GiB", "--gpu", gpu]);
        assert!(fine && said.starts_with("web server: "), "{said}");
        let (fine, said) = run(&node, &["explain", name, "--seconds", "0.1"]);
        assert!(fine && said.starts_with("web server, gpu 1 (simulated), "), "{said}");
        let (fine, said) = run(&node, &["events", "--slice", name]);
        assert!(fine && said.lines().all(|line| line.contains("  web server  ")), "{said}");
    }
    let other =
        json(&node, &["gpus", "--json"])["gpus"][0]["uuid"].as_str().expect("it").to_owned();
    let (fine, said) = run(&node, &["set", "c0f", "--memory", "2GiB", "--gpu", &other]);
    assert!(!fine && said.contains(&format!("the slice has no {other}")), "{said}");
    assert!(run(&node, &["rm", "web server"]).0);
    assert!(node.containers().is_empty());
    let events = run(&node, &["events", "--slice", "web server"]).1;
    assert!(events.contains("slice-ended") && events.contains("removed"), "{events}");
    denied(node.admin().ask(&Admin::Resize {
        container: id("c0ffee0123456789"),
        lane: gpuslice_wire::ids::Lane(0),
        memory: gpuslice_wire::admin::MemoryAsk::Exactly(Bytes(GIB)),
    }));
}
