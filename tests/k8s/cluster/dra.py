"""Dynamic resource allocation on a server that is older than it: its objects as custom resources, and the calls of a
kubelet that knows them.

A schema without the fields of consumable capacity drops them, exactly as a server does whose gate is off."""
import grpc

from kit import cri

SLICES, CLAIMS = "resourceslices", "resourceclaims"
GROUP = "/apis/resource.k8s.io/v1"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
SOCKET = "/var/lib/kubelet/plugins/gpu.gpuslice.io/dra.sock"


def mapping(values):
    return {"type": "object", "additionalProperties": values}


def fields(**properties):
    return {"type": "object", "properties": properties}


def slices(gate):
    """The schema of a slice's `spec`."""
    if gate:
        return ANY
    text = {"type": "string"}
    capacity = mapping(fields(value=text))
    device = fields(name=text, attributes=mapping(ANY), capacity=capacity, taints={"type": "array", "items": ANY})
    return fields(driver=text, nodeName=text, pool=ANY, devices={"type": "array", "items": device})


def definition(plural, kind, scope, spec):
    schema = {"type": "object", "properties": {"spec": spec, "status": ANY}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.resource.k8s.io", "annotations": {
            "api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/4381"}},
        "spec": {"group": "resource.k8s.io", "scope": scope, "names": names, "versions": [version]},
    }


def definitions(gate):
    return [definition(SLICES, "ResourceSlice", "Cluster", slices(gate)),
            definition(CLAIMS, "ResourceClaim", "Namespaced", ANY)]


def claim(name, pool, *results):
    """A claim as a scheduler leaves it; a result is device, memory and percent."""
    def result(number, device, memory, cores):
        return {
            "request": "gpu", "driver": "gpu.gpuslice.io", "pool": pool, "device": device, "shareID": f"share-{number}",
            "consumedCapacity": {"memory": memory, "cores": cores, "shares": "1"},
        }
    found = [result(number, *one) for number, one in enumerate(results)]
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "gpu"}]}},
            "status": {"allocation": {"devices": {"results": found}}}}


class Kubelet:
    """A kubelet's calls to the driver."""

    def __init__(self):
        # A kubelet sends this name, not the path.
        self.channel = grpc.insecure_channel(f"unix://{SOCKET}", [("grpc.default_authority", "localhost")])

    def call(self, method, claim):
        meta = claim["metadata"]
        message = {1: [{1: meta["namespace"], 2: meta["uid"], 3: meta["name"]}]}
        answer = self.channel.unary_unary(SERVICE + method, cri.encode, cri.decode)(message, timeout=60)
        # A map of one entry: its value.
        return cri.decode(cri.decode(answer[1]).get(2, b""))

    def prepare(self, claim):
        """The CDI device of the last result, and the error."""
        found = self.call("NodePrepareResources", claim)
        device = cri.decode(found.get(1, b"")).get(4, b"").decode()
        return device, found.get(2, b"").decode()

    def unprepare(self, claim):
        return self.call("NodeUnprepareResources", claim).get(1, b"").decode()

    def close(self):
        self.channel.close()


def compact(revision):
    """etcd forgets what was before; it then refuses a watch from there, and so does the API server."""
    with grpc.insecure_channel("127.0.0.1:2379") as channel:
        request = {1: revision, 2: 1}
        channel.unary_unary("/etcdserverpb.KV/Compact", cri.encode, cri.decode)(request, timeout=60)
