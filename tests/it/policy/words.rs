//! Invalid policy options are refused with the reason and change nothing; cGPU's variables have cGPU's meaning.

use super::Stage;
use crate::harness::bundle::{Bundle, complaint, hook, printed};
use crate::harness::cli::refused;
use gpuslice_wire::units::{Bytes, GIB, Percent};

#[test]
fn invalid_options_are_refused_with_the_reason() {
    let stage = Stage::new();
    stage.node.must_admit("web", Bytes(GIB));
    let reserved = |name: &'static str, gpu: &'static str| {
        let share = Percent::new(30).ok();
        stage.node.must_admit_with(name, gpu, Bytes(GIB), |asked| asked.share = share);
    };
    let on = stage.ps()["slices"][0]["gpu"].clone();
    assert_eq!(on, stage.ps()["gpus"][0]["uuid"], "web is on GPU 0");
    reserved("other", "0");
    reserved("fixed", "1");
    stage.must(&["policy", "1", "fixed"]);
    // All of them but what NVML measures.
    let gpus = || {
        let mut gpus = stage.ps()["gpus"].take();
        let all = gpus.as_array_mut().expect("a list");
        all.iter_mut().for_each(|gpu| gpu["utilisation"] = "measured".into());
        gpus
    };
    let before = (gpus(), stage.slice("web"));
    let cases: [(&[&str], &str); 20] = [
        (&["policy", "0", "quick"], "fair, preemptive, weighted, fixed, soft or native"),
        (&["policy", "0", "6"], "0 to 5"),
        (&["policy", "0", "-1"], "0 to 5"),
        (&["policy", "0", "Soft"], "0 to 5"),
        (&["policy", "fair"], "fair is a policy"),
        (&["policy", "9", "soft"], "no GPU"),
        (&["policy", "9"], "no GPU"),
        (&["policy", "first", "soft"], "any, all"),
        (&["policy", "0,0", "soft"], "twice"),
        (&["set", "web"], "nothing to set"),
        (&["set", "web", "--weight", "0"], "1 to 1000"),
        (&["set", "web", "--weight", "1001"], "1 to 1000"),
        (&["set", "web", "--share", "101"], "1 to 100"),
        (&["set", "web", "--share-limit", "0"], "1 to 100"),
        (&["set", "web", "--share-limit", "101"], "1 to 100"),
        (&["set", "web", "--share", "30", "--share-limit", "29"], "limit of at least 30 %"),
        (&["set", "web", "--share", "71"], "the 70 % that GPU 0 has left"),
        (&["set", "fixed", "--share-limit", "none"], "GPU 1 has the policy fixed"),
        (&["set", "web", "--priority", "urgent"], "high, normal or best-effort"),
        (&["set", "missing", "--weight", "2"], "missing"),
    ];
    for (words, expected) in cases {
        let said = refused(&stage.node, words);
        assert!(said.contains(expected), "{words:?}: {said}");
    }
    let nothing = stage.gpuslice(&["set", "web"]).status;
    assert_eq!(nothing.code(), Some(2), "wrong words");
    let after = stage.slice("web");
    assert_eq!(gpus(), before.0);
    for key in ["memory_cap", "weight", "share", "share_limit", "class", "time_cap_ppm"] {
        assert_eq!(after[key], before.1[key], "{key}");
    }
}

#[test]
fn the_policies_are_shown() {
    let stage = Stage::new();
    let told = stage.must(&["policy", "1", "2"]);
    assert_eq!(told.trim(), "gpu 1 (simulated): soft -> weighted");
    let shown = stage.must(&["policy"]);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 3, "{shown}");
    assert!(lines[1].contains("4 soft") && lines[2].contains("2 weighted"), "{shown}");
}

/// A container with these of cGPU's variables.
fn of_cgpu(stage: &Stage, id: &str, variables: &[&str]) -> Bundle {
    let bundle = Bundle::new(stage.node.root(), id, "runc", stage.node.runtime_dir());
    let memory = [
        "ALIYUN_COM_GPU_MEM_CONTAINER=2",
        "ALIYUN_COM_GPU_MEM_DEV=16",
        "ALIYUN_COM_GPU_VISIBLE_DEVICES=0",
    ];
    let all = memory.iter().chain(variables);
    all.fold(bundle, |bundle, entry| bundle.variable(entry))
}

/// Only an administrator changes how a GPU's time is divided among containers.
#[test]
fn no_variable_of_an_image_changes_how_a_gpu_is_divided() {
    let Some(hook) = hook("no_variable_of_an_image_changes_how_a_gpu_is_divided", "runc") else {
        return;
    };
    let stage = Stage::new();
    stage.must(&["policy", "all", "preemptive"]);
    let policies = || {
        let view = stage.ps();
        [0, 1].map(|gpu: usize| view["gpus"][gpu]["policy"].as_str().map(str::to_owned))
    };
    let before = policies();
    printed(&of_cgpu(&stage, "one", &["ALIYUN_COM_GPU_SCHD_WEIGHT=1"]).run(&hook));
    for bad in [
        "ALIYUN_COM_GPU_SCHD_WEIGHT=3",
        "ALIYUN_COM_GPU_SCHD_WEIGHT=0",
        "ALIYUN_COM_GPU_HIGH_PRIO=1",
        "ALIYUN_COM_GPU_HIGH_PRIO=2",
    ] {
        let said = complaint(&of_cgpu(&stage, "bad", &[bad]).run(&hook));
        let key = bad.split('=').next().expect("a key");
        assert!(said.contains(key), "{bad}: {said}");
    }
    assert_eq!(policies(), before);
    assert_eq!(stage.ps()["slices"].as_array().map(Vec::len), Some(0));
}
