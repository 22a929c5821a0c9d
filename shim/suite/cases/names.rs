//! Ways to a function: names, versions, flavours, and the detours around the shim.

use super::{slice, steps};
use crate::suite::Injection;

pub fn names_resolve_to_hooks_by_version_and_stream_variant(injection: Injection) {
    let slice = slice(injection);
    let (ours, real) = (format!("whichby 0 {}", injection.file()), "whichby 0 libcuda.so.1");
    let lines = steps(
        &slice,
        &[
            "whichby:cuMemAlloc:2000",
            "whichby:cuMemAlloc:3020",
            "whichby:cuMemAlloc:12000:2",
            "whichby:cuMemAllocAsync:12000",
            "whichby:cuMemAllocAsync:12000:2",
            "whichby:cuMemFreeAsync:12000",
            "whichby:cuLaunchKernel:7000:2",
            "whichby:cuLaunchKernel:4000",
            "whichby:cuMemsetD8Async:12000",
            "whichby:cuGetProcAddress:12000",
            "whichby:cuGraphInstantiate:11040",
            "whichby:cuGraphInstantiate:12000",
            "whichby:cuInit:2000",
        ],
    );
    assert!(lines.iter().all(|line| *line == ours), "{lines:?}");
    let lines = steps(
        &slice,
        &[
            "whichby:cuStreamWriteValue32:12000",
            "whichby:cuFromTheFuture:12090",
            "whichby:cuMemAlloc:1000",
            "whichby:cuNothing:12000",
        ],
    );
    assert_eq!(lines, [real, real, "whichby 5002 none", "whichby 5001 none"]);
}

pub fn other_functions_pass_through(injection: Injection) {
    let slice = slice(injection);
    let lines = steps(&slice, &["write", "launch", "write", "launch"]);
    assert_eq!(lines, ["write 77 0 0", "launch 0 0 0", "write 77 0 0", "launch 0 0 0"]);
}

pub fn usual_detours_do_not_bypass_the_hooks(injection: Injection) {
    let slice = slice(injection);
    let ours = injection.file();
    let lines = steps(&slice, &["which:cuMemAlloc_v2", "deep", "dlvsym", "plugin", "deepplugin"]);
    let verbs = ["which", "deep", "dlvsym", "plugin", "deepplugin"];
    let expect: Vec<String> = verbs.iter().map(|verb| format!("{verb} {ours}")).collect();
    assert_eq!(lines, expect);
}
