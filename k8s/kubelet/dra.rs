//! `v1` of the kubelet's interface to drivers of dynamic resource allocation, and their registration.

use std::collections::BTreeMap;

/// The type of a driver in its registration.
pub const DRIVER: &str = "DRAPlugin";
/// Services of a driver, newest first. Their messages are the same.
pub const SUPPORTED: [&str; 2] = ["v1.DRAPlugin", "v1beta1.DRAPlugin"];
/// Claims of one call, at most.
pub const CLAIMS_MAX: usize = 128;

/// Paths of the methods.
pub mod method {
    pub const INFO: &str = "/pluginregistration.Registration/GetInfo";
    pub const STATUS: &str = "/pluginregistration.Registration/NotifyRegistrationStatus";
    pub const PREPARE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
    pub const UNPREPARE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources";
    pub const HEALTH: &str = "/v1alpha1.DRAResourceHealth/NodeWatchResources";
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PluginInfo {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "2")]
    pub name: String,
    /// Path of the driver's socket.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub registered: bool,
    #[prost(string, tag = "2")]
    pub error: String,
}

/// Of preparation and its opposite.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ClaimsRequest {
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Claim {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PrepareResponse {
    #[prost(btree_map = "string, message", tag = "1")]
    pub claims: BTreeMap<String, Prepared>,
}

/// Devices of a claim, or why it has none.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Prepared {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
    #[prost(string, tag = "2")]
    pub error: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Device {
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    #[prost(string, tag = "2")]
    pub pool_name: String,
    #[prost(string, tag = "3")]
    pub device_name: String,
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct UnprepareResponse {
    #[prost(btree_map = "string, message", tag = "1")]
    pub claims: BTreeMap<String, Unprepared>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Unprepared {
    #[prost(string, tag = "1")]
    pub error: String,
}
