//! Whether another program offers this node's GPUs to Kubernetes.
//!
//! A GPU has one owner: two programs that place pods on it would each promise all of it. A program that offers GPUs
//! listens on a socket in a directory of the kubelet. A socket that refuses connections is left from a program that has
//! ended.

use super::{Check, needed, there};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The check's name.
const NAME: &str = "gpu owner";
/// Where programs announce themselves, and how the names of NVIDIA's sockets begin there.
const SOCKETS: [(&str, &str, &str); 2] = [
    ("device-plugins", "nvidia-", "NVIDIA's device plugin"),
    ("plugins_registry", "gpu.nvidia.com", "NVIDIA's DRA driver"),
];
/// How to end it.
const FIX: &str = "keep it off this node, by a node selector or the label \
                   nvidia.com/gpu.deploy.device-plugin=false, or label the node gpuslice.io/mode=off";

/// The check of a kubelet's directory.
pub fn of_kubelet(kubelet: &Path) -> Check {
    let alive = SOCKETS.iter().filter_map(|(directory, prefix, owner)| {
        let directory = kubelet.join(directory);
        let entries = std::fs::read_dir(&directory).ok()?.filter_map(Result::ok);
        let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let name = names.find(|name| {
            name.starts_with(prefix) && UnixStream::connect(directory.join(name)).is_ok()
        })?;
        Some(format!("{owner} offers GPUs of this node ({})", directory.join(name).display()))
    });
    match alive.collect::<Vec<_>>().as_slice() {
        [] => there(NAME, format!("no other program offers GPUs in {}", kubelet.display())),
        found => needed(NAME, found.join("; "), FIX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_plugin_that_listens_is_found() {
        let kubelet = tempfile::tempdir().expect("a directory");
        let check = || of_kubelet(kubelet.path());
        assert!(check().ok, "a kubelet without plugins");
        for name in ["device-plugins", "plugins_registry"] {
            fs::create_dir(kubelet.path().join(name)).expect("a directory");
        }
        let bind = |path: &str| UnixListener::bind(kubelet.path().join(path)).expect("a socket");
        drop(bind("device-plugins/nvidia-mig-1g.10gb.sock"));
        let _others = [bind("device-plugins/kubelet.sock"), bind("device-plugins/@gpu-mem.sock")];
        assert!(check().ok, "{:?}", check());
        let plugin = bind("device-plugins/nvidia-gpu.sock");
        assert!(!check().ok && check().needed);
        assert!(check().found.starts_with("NVIDIA's device plugin offers GPUs"), "{:?}", check());
        drop(plugin);
        assert!(check().ok, "it has ended, and its socket is left");
        let _driver = bind("plugins_registry/gpu.nvidia.com-reg.sock");
        assert!(check().found.contains("DRA driver") && check().fix.contains("mode=off"));
    }
}
