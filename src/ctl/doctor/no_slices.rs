//! GPUs that have no slices because of how the driver runs them, and MPS.

use super::{Check, text, wanted};
use serde_json::Value;

/// MPS, if it runs. A GPU that its server uses has a check of its own.
pub fn mps(facts: &Value) -> Option<Check> {
    let pids: Vec<String> =
        facts["mps"].as_array()?.iter().map(|pid| format!("process {pid}")).collect();
    let found = format!(
        "NVIDIA's MPS runs ({}): a program that reaches its pipe directory is no slice's any more",
        pids.join(", ")
    );
    let fix = "echo quit | nvidia-cuda-mps-control, or give the pipe directory (/tmp/nvidia-mps) to no container";
    (!pids.is_empty()).then(|| wanted("mps", found, fix))
}

/// A GPU that has no slices, and what ends that. The daemon sees the end of MPS by its accounting.
pub fn of_gpu(name: &str, facts: &Value, gpu: &Value) -> Option<Check> {
    let no_slices = &gpu["no_slices"];
    let (why, end) = (text(&no_slices["why"])?, text(&no_slices["end"])?);
    let accounts = facts["config"]["accounting_interval_ms"] != 0;
    let after = match no_slices["sampled"] == true && accounts {
        true => "",
        false => ", then restart gpusliced",
    };
    Some(wanted(name, why, &format!("{end}{after}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn mps_is_named_with_its_end() {
        let mps = mps(&json!({ "mps": [17, 18] })).expect("a server");
        assert!(mps.found.contains("(process 17, process 18)") && !mps.needed, "{mps:?}");
        assert!(super::mps(&json!({ "mps": [] })).is_none());
    }

    #[test]
    fn a_gpu_without_slices_has_a_check_with_what_ends_that() {
        assert!(of_gpu("gpu 0", &json!({}), &json!({ "no_slices": null })).is_none());
        for (sampled, interval, fix) in [
            (true, 1_000, "quit"),
            (true, 0, "quit, then restart gpusliced"),
            (false, 1_000, "quit, then restart gpusliced"),
        ] {
            let facts = json!({ "config": { "accounting_interval_ms": interval } });
            let why = json!({ "why": "GPU 0 has", "end": "quit", "sampled": sampled });
            let gpu = of_gpu("gpu 0", &facts, &json!({ "no_slices": why })).expect("a check");
            let all = (gpu.name.as_str(), gpu.found.as_str(), gpu.fix.as_str());
            assert_eq!((all, gpu.ok), (("gpu 0", "GPU 0 has", fix), false));
        }
    }
}
