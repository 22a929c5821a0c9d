"""A kubelet's part of the Container Runtime Interface: pods and containers, over gRPC.

The messages are few and small, so they are written as the protocol buffers they are, with the numbers of
CRI v1's `api.proto`, and need no compiler: a message is a dictionary from field number to value; a list is a
repeated field; `pairs` makes a map."""
import pathlib
import unittest

from kit import node

SERVICE = "/runtime.v1.RuntimeService/"
# Namespace mode of a pod on the host's network: no network plugin is needed.
NODE_NETWORK = {1: 2}
CGROUPS = pathlib.Path("/sys/fs/cgroup")


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out + bytes([number]))


def encode(message):
    out = b""
    for number, value in message.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int):
                out += varint(number << 3) + varint(one)
                continue
            data = encode(one) if isinstance(one, dict) else one.encode()
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def decode(data):
    """Field numbers to integers and bytes, the last of a repeated field."""
    fields, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        value = number()
        if key & 7 == 2:
            value, at = data[at:at + value], at + value
        fields[key >> 3] = value
    return fields


def pairs(mapping):
    return [{1: key, 2: value} for key, value in mapping.items()]


class Refused(Exception):
    """What the engine answered; a kubelet shows it in the pod's events."""


class Client:
    def __init__(self, case, socket):
        try:
            import grpc
        except ImportError:
            raise unittest.SkipTest("Python has no grpcio; run tests/run") from None
        self.grpc = grpc
        self.channel = grpc.insecure_channel(f"unix://{socket}")
        case.addCleanup(self.channel.close)

    def call(self, method, message):
        function = self.channel.unary_unary(SERVICE + method, encode, decode)
        try:
            return function(message, timeout=node.PATIENCE_S)
        except self.grpc.RpcError as error:
            raise Refused(error.details()) from None


class Pod:
    """A sandbox; `handler` is what a RuntimeClass names."""

    def __init__(self, case, client, name, handler="", annotations=None):
        self.case, self.client = case, client
        self.logs = case.node.root / f"{name}.logs"
        self.group = f"/{case.node.root.name}-{name}"
        self.config = {
            1: {1: name, 2: f"{name}-{case.node.root.name}", 3: "default"},
            3: str(self.logs),
            7: pairs(annotations or {}),
            8: {1: self.group, 2: {1: NODE_NETWORK}},
        }
        answer = client.call("RunPodSandbox", {1: self.config, 2: handler})
        self.id = answer[1].decode()
        case.addCleanup(self.remove)

    def remove(self):
        if self.id:
            self.client.call("StopPodSandbox", {1: self.id})
            self.client.call("RemovePodSandbox", {1: self.id})
            self.id = None
            # The pod's own control group is its kubelet's to make and to remove.
            for top in [CGROUPS, *CGROUPS.iterdir()]:
                if (group := top / self.group[1:]).is_dir():
                    group.rmdir()

    def run(self, image, name, words, annotations=None, variables=None, capabilities=()):
        return Container(self, image, name, words, annotations or {}, variables or {}, capabilities)


class Container(node.Output):
    """A container of a pod, started."""

    def __init__(self, pod, image, name, words, annotations, variables, capabilities):
        self.client = pod.client
        rights = {1: {1: list(capabilities)}, 3: NODE_NETWORK}
        config = {
            1: {1: name}, 2: {1: image}, 3: list(words), 6: pairs(variables), 10: pairs(annotations),
            11: f"{name}.log", 15: {2: rights},
        }
        request = {1: pod.id, 2: config, 3: pod.config}
        self.id = self.client.call("CreateContainer", request)[1].decode()
        super().__init__(pod.logs / f"{name}.log", self.exit_status)
        self.client.call("StartContainer", {1: self.id})

    def status(self):
        return decode(self.client.call("ContainerStatus", {1: self.id})[1])

    def exit_status(self):
        status = self.status()
        return status.get(7, 0) if status.get(3) == 2 else None

    def ends(self):
        node.eventually(f"{self.id} ends", lambda: self.exit_status() is not None)
        return self.exit_status(), self.text()

    def stop(self):
        self.client.call("StopContainer", {1: self.id})
