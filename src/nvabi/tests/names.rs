//! The table against NVIDIA's headers: a function missing here is a failing test with its name.

mod headers;

use gpuslice_nvabi::lookup::{Missing, PER_THREAD_DEFAULT_STREAM, exported, form, symbol};
use gpuslice_nvabi::table::{DRIVER_COUNT, NVML_COUNT};
use gpuslice_nvabi::types::{CUresult, nvmlReturn_t};
use gpuslice_nvabi::{DRIVER, Function, NVML, Shim, Sim};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

/// Fails with the entries that differ, not with two maps of hundreds.
fn assert_same<K: Ord + Debug, V: PartialEq + Debug>(
    ours: &BTreeMap<K, V>,
    theirs: &BTreeMap<K, V>,
) {
    let keys: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    let differing: Vec<_> = keys
        .into_iter()
        .filter(|key| ours.get(key) != theirs.get(key))
        .map(|key| format!("{key:?}: table {:?}, headers {:?}", ours.get(key), theirs.get(key)))
        .collect();
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

fn names(table: &[Function]) -> BTreeSet<String> {
    table.iter().map(|f| f.name.to_string()).collect()
}

#[test]
fn no_driver_function_of_the_headers_is_missing() {
    let table = names(&DRIVER);
    for wheel in &headers::CUDA {
        let Some(include) = headers::include(wheel) else {
            continue;
        };
        let header = headers::exported_by_cuda(&include);
        assert!(header.len() > 500, "{}: only {} names read", wheel.directory, header.len());
        let missing: Vec<_> = header.difference(&table).collect();
        assert!(missing.is_empty(), "in {} but not in the table: {missing:?}", wheel.directory);
    }
}

#[test]
fn every_driver_row_is_in_some_header() {
    let mut known = BTreeSet::new();
    for wheel in &headers::CUDA {
        let Some(include) = headers::include(wheel) else {
            return;
        };
        known.extend(headers::exported_by_cuda(&include));
    }
    let table = names(&DRIVER);
    let unknown: Vec<_> = table.difference(&known).collect();
    // cudaProfiler.h is not in these wheels; its typedefs are, and are compared below.
    assert_eq!(unknown, ["cuProfilerInitialize", "cuProfilerStart", "cuProfilerStop"]);
}

#[test]
fn versions_are_those_of_the_typedef_headers() {
    let mut ours: BTreeMap<(String, String), BTreeSet<u32>> = BTreeMap::new();
    for function in &DRIVER {
        let (name, suffix) = headers::split_suffix(function.name);
        let base = match name.rsplit_once("_v") {
            Some((base, digits)) if digits.parse::<u8>().is_ok() => base,
            _ => name,
        };
        let versions = ours.entry((base.into(), suffix.into())).or_default();
        assert!(versions.insert(function.since), "{}: version taken twice", function.name);
    }
    let mut theirs: BTreeMap<(String, String), BTreeSet<u32>> = BTreeMap::new();
    for wheel in &headers::CUDA {
        let Some(include) = headers::include(wheel) else {
            return;
        };
        for (key, versions) in headers::versions_in_typedefs(&include) {
            theirs.entry(key).or_default().extend(versions);
        }
    }
    assert_same(&ours, &theirs);
}

#[test]
fn a_later_form_has_a_later_version() {
    for function in &DRIVER {
        let (name, suffix) = headers::split_suffix(function.name);
        for (from, to) in [("", "_v2"), ("_v2", "_v3"), ("_v3", "_v4")] {
            let Some(base) = name.strip_suffix(from) else {
                continue;
            };
            let Some(next) = exported(&format!("{base}{to}{suffix}")) else {
                continue;
            };
            let next = &DRIVER[next];
            assert!(function.since < next.since, "{} and {}", function.name, next.name);
        }
    }
}

/// What NVML exports beyond its headers (580.159.04).
const EXPORTED_ONLY: [&str; 3] = [
    "nvmlGetBlacklistDeviceCount",
    "nvmlGetBlacklistDeviceInfoByIndex",
    "nvmlInternalGetExportTable",
];

#[test]
fn nvml_matches_its_headers() {
    let mut first_seen: BTreeMap<String, u32> = BTreeMap::new();
    for (wheel, version) in &headers::NVML {
        let Some(include) = headers::include(wheel) else {
            return;
        };
        let declared = headers::declared_by_nvml(&include);
        assert!(declared.len() > 250, "{}: only {} names", wheel.directory, declared.len());
        for name in declared {
            first_seen.entry(name).or_insert(*version);
        }
    }
    let mut ours: BTreeMap<_, _> = NVML.iter().map(|f| (f.name.to_string(), f.since)).collect();
    for name in EXPORTED_ONLY {
        assert!(ours.remove(name).is_some() && !first_seen.contains_key(name), "{name}");
    }
    assert_same(&ours, &first_seen);
}

#[test]
fn rows_are_unique() {
    assert_eq!(names(&DRIVER).len(), DRIVER_COUNT);
    assert_eq!(names(&NVML).len(), NVML_COUNT);
}

#[test]
fn a_per_thread_variant_is_treated_like_its_legacy_form() {
    for function in &DRIVER {
        let (name, suffix) = headers::split_suffix(function.name);
        if suffix.is_empty() {
            continue;
        }
        let plain = exported(name).unwrap_or_else(|| panic!("{} has no {name}", function.name));
        let plain = &DRIVER[plain];
        assert_eq!((plain.shim, plain.sim), (function.shim, function.sim), "{}", function.name);
    }
}

#[test]
fn functions_that_take_memory_or_start_work_are_hooked() {
    for name in [
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuMemAllocAsync",
        "cuMemAllocAsync_ptsz",
        "cuMemAllocFromPoolAsync_ptsz",
        "cuMemCreate",
        "cuArrayCreate_v2",
        "cuMipmappedArrayCreate",
        "cuLaunchKernel",
        "cuLaunchKernel_ptsz",
        "cuLaunchKernelEx_ptsz",
        "cuGraphLaunch_ptsz",
        "cuMemcpyDtoDAsync_v2",
        "cuMemcpyHtoD_v2_ptds",
        "cuMemsetD2D32Async_ptsz",
        "cuMemPrefetchAsync_v2",
        "cuGetProcAddress",
        "cuGetProcAddress_v2",
    ] {
        let function = &DRIVER[exported(name).expect(name)];
        assert_eq!((function.shim, function.sim), (Shim::Hook, Sim::Implemented), "{name}");
    }
}

#[test]
fn lookup_picks_the_version_asked_for() {
    let per_thread = PER_THREAD_DEFAULT_STREAM;
    for (base, version, flags, expected) in [
        ("cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 13000, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 13000, per_thread, "cuMemAlloc_v2"),
        ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
        ("cuMemAlloc", 3010, 0, "cuMemAlloc"),
        ("cuCtxCreate", 2000, 0, "cuCtxCreate"),
        ("cuCtxCreate", 11030, 0, "cuCtxCreate_v2"),
        ("cuCtxCreate", 12040, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 13000, 0, "cuCtxCreate_v4"),
        ("cuLaunchKernel", 12000, 0, "cuLaunchKernel"),
        ("cuLaunchKernel", 12000, 1, "cuLaunchKernel"),
        ("cuLaunchKernel", 12000, per_thread, "cuLaunchKernel_ptsz"),
        ("cuLaunchKernel", 6050, per_thread, "cuLaunchKernel"),
        ("cuMemcpyHtoD", 12000, per_thread, "cuMemcpyHtoD_v2_ptds"),
        ("cuMemcpyHtoD", 12000, 0, "cuMemcpyHtoD_v2"),
        ("cuMemcpyHtoD", 2000, per_thread, "cuMemcpyHtoD"),
        ("cuStreamGetCaptureInfo", 10010, per_thread, "cuStreamGetCaptureInfo_ptsz"),
        ("cuStreamGetCaptureInfo", 11030, per_thread, "cuStreamGetCaptureInfo_v2_ptsz"),
        ("cuStreamGetCaptureInfo", 12030, 0, "cuStreamGetCaptureInfo_v3"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
        ("cuGetProcAddress", 12000, per_thread, "cuGetProcAddress_v2"),
        ("cuGraphInstantiate", 10000, 0, "cuGraphInstantiate"),
        ("cuGraphInstantiate", 11080, 0, "cuGraphInstantiate_v2"),
        ("cuGraphInstantiate", 12000, 0, "cuGraphInstantiateWithFlags"),
        ("cuTexRefSetAddress2D", 3020, 0, "cuTexRefSetAddress2D_v2"),
    ] {
        let found = symbol(base, version, flags).map(|found| found.symbol);
        assert_eq!(found, Ok(expected), "{base} as of {version}, flags {flags}");
    }
}

/// As an H200's driver answered.
#[test]
fn the_first_lookup_keeps_to_the_forms_of_a_name() {
    for (base, version, expected) in [
        ("cuGraphInstantiate", 11040, "cuGraphInstantiate_v2"),
        ("cuGraphInstantiate", 12000, "cuGraphInstantiate_v2"),
        ("cuGraphInstantiateWithFlags", 12000, "cuGraphInstantiateWithFlags"),
        ("cuCtxCreate", 12000, "cuCtxCreate_v3"),
        ("cuCtxCreate", 13000, "cuCtxCreate_v4"),
    ] {
        assert_eq!(form(base, version, 0).map(|found| found.symbol), Ok(expected), "{version}");
    }
}

#[test]
fn lookup_tells_unknown_from_too_new() {
    for unknown in ["", "cu", "cuNoSuchCall", "cuMemAlloc_v2", "cuLaunchKernel_ptsz", "malloc"] {
        assert_eq!(symbol(unknown, 13050, 0), Err(Missing::NotFound), "{unknown:?}");
    }
    for (too_new, version) in [("cuMemAllocAsync", 11010), ("cuLibraryLoadData", 11080)] {
        assert_eq!(symbol(too_new, version, 0), Err(Missing::VersionNotSufficient), "{too_new}");
    }
    assert_eq!(symbol("cuMemAlloc", 0, 0), Err(Missing::VersionNotSufficient));
}

#[test]
fn every_row_is_found_by_name_and_by_its_own_version() {
    for (index, function) in DRIVER.iter().enumerate() {
        assert_eq!(exported(function.name), Some(index), "{}", function.name);
        let (name, suffix) = headers::split_suffix(function.name);
        let base = match name.rsplit_once("_v") {
            Some((base, digits)) if digits.parse::<u8>().is_ok() => base,
            _ => name,
        };
        let flags = if suffix.is_empty() { 0 } else { PER_THREAD_DEFAULT_STREAM };
        let found = symbol(base, function.since, flags).expect(base);
        assert_eq!((found.symbol, found.index), (function.name, index));
    }
    assert_eq!(exported("cuNoSuchCall"), None);
    assert_eq!(exported("cuMemAlloc_v9"), None);
}

#[test]
fn results_have_names_and_texts() {
    assert_eq!(CUresult::ERROR_OUT_OF_MEMORY.0, 2);
    assert_eq!(CUresult::ERROR_OUT_OF_MEMORY.name(), Some(c"CUDA_ERROR_OUT_OF_MEMORY"));
    assert_eq!(CUresult::ERROR_OUT_OF_MEMORY.description(), Some(c"out of memory"));
    assert_eq!(CUresult(12345).name(), None);
    assert_eq!(format!("{:?}", CUresult(12345)), "CUresult(12345)");
    assert_eq!(format!("{}", CUresult::ERROR_NOT_FOUND), {
        "named symbol not found (CUDA_ERROR_NOT_FOUND)"
    });
    assert!(CUresult::ALL.iter().all(|r| r.name().is_some() && r.description().is_some()));
    assert!(CUresult::ALL.windows(2).all(|pair| pair[0].0 < pair[1].0));
    assert_eq!(nvmlReturn_t::ERROR_NOT_SUPPORTED.name(), Some(c"NVML_ERROR_NOT_SUPPORTED"));
    assert!(nvmlReturn_t::SUCCESS.is_success() && !nvmlReturn_t(3).is_success());
}
