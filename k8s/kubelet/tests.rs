//! The messages' bytes. Both ends of the other tests have the same structs, so a wrong number would not show there.

use super::device_plugin as plugin;
use super::dra;
use super::pod_resources as pods;
use prost::Message;

/// A field with a text or a message.
fn field(number: u8, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    assert!(number < 16 && content.len() < 128, "one byte is enough");
    [&[number << 3 | 2, content.len() as u8], content].concat()
}

/// A field with a number or a truth value.
fn value(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

fn message(fields: &[Vec<u8>]) -> Vec<u8> {
    fields.concat()
}

fn text(text: &str) -> String {
    text.to_owned()
}

#[test]
fn registration_of_a_device_plugin() {
    let request = plugin::RegisterRequest {
        version: text("v1beta1"),
        endpoint: text("e"),
        resource_name: text("r"),
        options: Some(plugin::Options {
            pre_start_required: true,
            get_preferred_allocation_available: true,
        }),
    };
    let options = message(&[value(1, 1), value(2, 1)]);
    let expected = [field(1, "v1beta1"), field(2, "e"), field(3, "r"), field(4, options)];
    assert_eq!(request.encode_to_vec(), message(&expected));
}

#[test]
fn the_list_of_devices() {
    let topology = plugin::Topology { nodes: vec![plugin::NumaNode { id: 5 }] };
    let device =
        plugin::Device { id: text("i"), health: text("Healthy"), topology: Some(topology) };
    let list = plugin::ListAndWatchResponse { devices: vec![device] };
    let topology = field(1, value(1, 5));
    let device = message(&[field(1, "i"), field(2, "Healthy"), field(3, topology)]);
    assert_eq!(list.encode_to_vec(), field(1, device));
}

#[test]
fn calls_of_a_container() {
    let preferred = plugin::PreferredRequest {
        container_requests: vec![plugin::ContainerPreferredRequest {
            available: vec![text("a"), text("b")],
            must_include: vec![text("m")],
            size: 2,
        }],
    };
    let wanted = message(&[field(1, "a"), field(1, "b"), field(2, "m"), value(3, 2)]);
    assert_eq!(preferred.encode_to_vec(), field(1, wanted));
    let advice = plugin::ContainerPreferredResponse { device_ids: vec![text("a")] };
    let advice = plugin::PreferredResponse { container_responses: vec![advice] };
    assert_eq!(advice.encode_to_vec(), field(1, field(1, "a")));
    let one = plugin::ContainerAllocateRequest { device_ids: vec![text("a")] };
    let allocate = plugin::AllocateRequest { container_requests: vec![one] };
    assert_eq!(allocate.encode_to_vec(), field(1, field(1, "a")));
    let start = plugin::PreStartContainerRequest { device_ids: vec![text("a")] };
    assert_eq!(start.encode_to_vec(), field(1, "a"));
}

#[test]
fn the_answer_to_an_allocation() {
    let response = plugin::ContainerAllocateResponse {
        envs: [(text("k"), text("v"))].into(),
        mounts: vec![plugin::Mount {
            container_path: text("c"),
            host_path: text("h"),
            read_only: true,
        }],
        devices: vec![plugin::DeviceNode {
            container_path: text("c"),
            host_path: text("h"),
            permissions: text("rw"),
        }],
        annotations: [(text("n"), text("w"))].into(),
        cdi_devices: vec![plugin::CdiDevice { name: text("d") }],
    };
    let paths = || message(&[field(1, "c"), field(2, "h")]);
    let expected = [
        field(1, message(&[field(1, "k"), field(2, "v")])),
        field(2, message(&[paths(), value(3, 1)])),
        field(3, message(&[paths(), field(3, "rw")])),
        field(4, message(&[field(1, "n"), field(2, "w")])),
        field(5, field(1, "d")),
    ];
    let response = plugin::AllocateResponse { container_responses: vec![response] };
    assert_eq!(response.encode_to_vec(), field(1, message(&expected)));
}

#[test]
fn registration_of_a_driver() {
    let info = dra::PluginInfo {
        kind: text("k"),
        name: text("n"),
        endpoint: text("e"),
        supported_versions: vec![text("v"), text("w")],
    };
    let expected = [field(1, "k"), field(2, "n"), field(3, "e"), field(4, "v"), field(4, "w")];
    assert_eq!(info.encode_to_vec(), message(&expected));
    let status = dra::RegistrationStatus { registered: true, error: text("e") };
    assert_eq!(status.encode_to_vec(), message(&[value(1, 1), field(2, "e")]));
}

#[test]
fn preparation_of_claims() {
    let claim = dra::Claim { namespace: text("s"), uid: text("u"), name: text("n") };
    let request = dra::ClaimsRequest { claims: vec![claim] };
    let expected = message(&[field(1, "s"), field(2, "u"), field(3, "n")]);
    assert_eq!(request.encode_to_vec(), field(1, expected));
    let device = dra::Device {
        request_names: vec![text("r")],
        pool_name: text("p"),
        device_name: text("d"),
        cdi_device_ids: vec![text("c")],
        share_id: Some(text("i")),
    };
    let prepared = dra::Prepared { devices: vec![device], error: text("e") };
    let response = dra::PrepareResponse { claims: [(text("u"), prepared)].into() };
    let device =
        [field(1, "r"), field(2, "p"), field(3, "d"), field(4, "c"), field(5, "i")].concat();
    let prepared = message(&[field(1, device), field(2, "e")]);
    let entry = message(&[field(1, "u"), field(2, prepared)]);
    assert_eq!(response.encode_to_vec(), field(1, entry));
    let unprepared = dra::Unprepared { error: text("e") };
    let response = dra::UnprepareResponse { claims: [(text("u"), unprepared)].into() };
    let entry = message(&[field(1, "u"), field(2, field(1, "e"))]);
    assert_eq!(response.encode_to_vec(), field(1, entry));
}

#[test]
fn pods_and_their_devices() {
    let devices =
        || pods::ContainerDevices { resource_name: text("r"), device_ids: vec![text("i")] };
    let container = pods::ContainerResources { name: text("c"), devices: vec![devices()] };
    let pod =
        pods::PodResources { name: text("p"), namespace: text("n"), containers: vec![container] };
    let list = pods::ListResponse { pods: vec![pod] };
    let device = || message(&[field(1, "r"), field(2, "i")]);
    let container = message(&[field(1, "c"), field(2, device())]);
    let pod = message(&[field(1, "p"), field(2, "n"), field(3, container)]);
    assert_eq!(list.encode_to_vec(), field(1, pod));
    let all = pods::AllocatableResponse { devices: vec![devices()] };
    assert_eq!(all.encode_to_vec(), field(1, device()));
}

/// The calls' paths: package, service and method.
#[test]
fn calls_have_the_kubelets_names() {
    let driver = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/";
    for (ours, theirs) in [
        (plugin::method::REGISTER, text("/v1beta1.Registration/Register")),
        (plugin::method::WATCH, text("/v1beta1.DevicePlugin/ListAndWatch")),
        (plugin::method::PREFERRED, text("/v1beta1.DevicePlugin/GetPreferredAllocation")),
        (plugin::method::ALLOCATE, text("/v1beta1.DevicePlugin/Allocate")),
        (plugin::method::PRE_START, text("/v1beta1.DevicePlugin/PreStartContainer")),
        (dra::method::PREPARE, format!("{driver}NodePrepareResources")),
        (dra::method::UNPREPARE, format!("{driver}NodeUnprepareResources")),
        (pods::LIST, text("/v1.PodResourcesLister/List")),
        (pods::ALLOCATABLE, text("/v1.PodResourcesLister/GetAllocatableResources")),
    ] {
        assert_eq!(ours, theirs);
    }
}
