//! Names that other programs also know: resources, annotations and labels of gpushare, of ACK and of ours.

use std::sync::LazyLock;

/// GPU memory in units of the node, the sum over its GPUs.
pub const MEMORY: &str = "aliyun.com/gpu-mem";
/// Percent of a GPU's time.
pub const CORES: &str = "aliyun.com/gpu-core.percentage";
/// Number of GPUs: in a node's status, and as a pod's label the number of GPUs that it wants.
pub const COUNT: &str = "aliyun.com/gpu-count";

/// Whole GPUs.
pub const WHOLE: &str = "aliyun.com/gpu";
/// gputopo: the indices of the pod's whole GPUs, `0,3`.
pub const GPU_GROUP: &str = "topology.kubernetes.io/gpu-group";
/// gputopo: those that its containers see.
pub const GPU_VISIBLE: &str = "topology.kubernetes.io/gpu-visible";

/// gpushare v1: the index of the pod's GPU, decimal.
pub const V1_INDEX: &str = "ALIYUN_COM_GPU_MEM_IDX";
/// gpushare v1: memory of the pod, of all of its containers.
pub const V1_POD: &str = "ALIYUN_COM_GPU_MEM_POD";
/// gpushare v1: memory of one container.
pub const V1_CONTAINER: &str = "ALIYUN_COM_GPU_MEM_CONTAINER";
/// gpushare v1: memory of one GPU.
pub const V1_DEVICE: &str = "ALIYUN_COM_GPU_MEM_DEV";
/// gpushare v1: "false" from the scheduler, "true" from the plugin.
pub const V1_ASSIGNED: &str = "ALIYUN_COM_GPU_MEM_ASSIGNED";
/// gpushare v1: nanoseconds since 1970.
pub const V1_ASSUME_TIME: &str = "ALIYUN_COM_GPU_MEM_ASSUME_TIME";

/// ACK v2: JSON `{"CONTAINER":{"GPU":memory}}`, both by index.
pub const V2_MEMORY: &str = "scheduler.framework.gpushare.allocation";
/// ACK v2: the same for percent of compute.
pub const V2_CORES: &str = "gpushare.alibabacloud.com/core-percentage";
/// ACK v2: "true" after the GPU has been assigned.
pub const V2_ASSIGNED: &str = "scheduler.framework.gpushare.assigned";

/// On a pod: the annotations above are this plugin's, not a scheduler's.
pub const OURS: &str = "gpuslice.io/assigned";

/// gpushare: the namespace of the ConfigMaps by which nodes and schedulers tell each other of GPUs.
pub const CONFIG_MAPS: &str = "kube-system";

/// The path of a namespace's ConfigMaps.
#[must_use]
pub fn config_maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

/// Node label: how shares are distributed over the node's GPUs.
pub const PLACEMENT: &str = "ack.node.gpu.placement";
/// Node label: the one program that offers the node's GPUs.
pub const MODE: &str = "ack.node.gpu.schedule";
/// Node label: the same, and nearer, for nodes that ACK does not manage.
pub const OUR_MODE: &str = "gpuslice.io/mode";

/// The names of the two resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceNames {
    pub memory: String,
    pub cores: String,
}

impl Default for ResourceNames {
    fn default() -> ResourceNames {
        ResourceNames { memory: MEMORY.to_owned(), cores: CORES.to_owned() }
    }
}

impl ResourceNames {
    /// The names that gpushare's users know.
    #[must_use]
    pub fn usual() -> &'static ResourceNames {
        static USUAL: LazyLock<ResourceNames> = LazyLock::new(ResourceNames::default);
        &USUAL
    }
}
