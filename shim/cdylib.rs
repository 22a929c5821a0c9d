// Shared by the build scripts of the three shim libraries.

/// Sets the link options of every shim library; `soname` is the library it replaces.
fn link_cdylib(soname: &str) {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../cdylib.rs");
    let options = [
        // The loader uses this library for every request for `soname`.
        format!("-soname,{soname}"),
        // Our calls to an exported name resolve to our own definition.
        "-Bsymbolic".into(),
        // All of libc's functions are resolved at load time, not in the middle of a call.
        "-z,now".into(),
        // A program may close the driver; our threads and fork handlers need the code to stay.
        "-z,nodelete".into(),
    ];
    for option in options {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{option}");
    }
    static_unwinder();
}

/// Links the unwinder (for stopping panics) into the library: a preloaded library that needs more than
/// libc makes every program in a small image complain. Its symbols are asked for at the front of
/// the link, so that the archive answers before the shared library, which is then not needed.
/// zig, which links for old systems, has an unwinder of its own and links it in by itself; the
/// compiler's asks for functions that an old loader does not have.
fn static_unwinder() {
    if std::env::var("RUSTC_LINKER").is_ok_and(|linker| linker.contains("zigcc")) {
        return;
    }
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let archive = std::process::Command::new(&compiler)
        .arg("-print-file-name=libgcc_eh.a")
        .output()
        .unwrap_or_else(|error| panic!("cannot run {compiler}: {error}"));
    let archive = String::from_utf8(archive.stdout).expect("a path of the compiler is UTF-8");
    let archive = std::path::Path::new(archive.trim());
    if let Some(directory) = archive.parent().filter(|_| archive.is_absolute()) {
        println!("cargo:rustc-link-search=native={}", directory.display());
        println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
        for symbol in ["Backtrace", "RaiseException", "Resume", "DeleteException", "GetIP",
            "GetIPInfo", "GetLanguageSpecificData", "GetRegionStart", "GetTextRelBase",
            "GetDataRelBase", "SetGR", "SetIP", "GetCFA", "FindEnclosingFunction"]
        {
            println!("cargo:rustc-cdylib-link-arg=-Wl,-u,_Unwind_{symbol}");
        }
    }
}
