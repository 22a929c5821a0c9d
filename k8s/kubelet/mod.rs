//! The kubelet's interfaces: messages by their field numbers, and where its sockets are.

pub mod device_plugin;
pub mod dra;
pub mod pod_resources;

use std::path::{Path, PathBuf};

/// Directories of a kubelet.
#[derive(Debug, Clone)]
pub struct Directories(PathBuf);

impl Directories {
    /// Below the kubelet's root, mostly `/var/lib/kubelet`.
    #[must_use]
    pub fn new(root: &Path) -> Directories {
        Directories(root.to_owned())
    }

    /// Where device plugins have their sockets, and the kubelet the one for registration.
    #[must_use]
    pub fn device_plugins(&self) -> PathBuf {
        self.0.join("device-plugins")
    }

    /// The kubelet's socket for the registration of device plugins.
    #[must_use]
    pub fn device_plugin_registry(&self) -> PathBuf {
        self.device_plugins().join("kubelet.sock")
    }

    /// The kubelet's socket that lists pods with their devices.
    #[must_use]
    pub fn pod_resources(&self) -> PathBuf {
        self.0.join("pod-resources/kubelet.sock")
    }

    /// Where drivers announce themselves.
    #[must_use]
    pub fn plugins_registry(&self) -> PathBuf {
        self.0.join("plugins_registry")
    }

    /// A driver's own directory.
    #[must_use]
    pub fn driver(&self, name: &str) -> PathBuf {
        self.0.join("plugins").join(name)
    }
}

#[cfg(test)]
mod tests;
