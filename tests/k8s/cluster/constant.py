"""A device plugin that decides nothing: it offers the same resources and answers each call with the same words.

What a pod needs with it is what Kubernetes itself costs."""
import threading
from concurrent import futures

import grpc

from kit import cri

DIRECTORY = "/var/lib/kubelet/device-plugins"


def plain(data):
    return data


class Plugin:
    def __init__(self, resource, devices):
        self.resource, self.name = resource, resource.split("/")[1] + "-constant.sock"
        listed = cri.encode({1: [{1: f"{resource[-4:]}-{at}", 2: "Healthy"} for at in range(devices)]})
        allocated = cri.encode({1: [{1: cri.pairs({"CONSTANT": "1"})}]})

        def list_and_watch(_, context):
            yield listed
            while context.is_active():
                if self.ending.wait(1):
                    return

        def unary(answer):
            return grpc.unary_unary_rpc_method_handler(lambda *_: answer, plain, plain)
        self.ending = threading.Event()
        methods = {
            "GetDevicePluginOptions": unary(b""), "Allocate": unary(allocated), "PreStartContainer": unary(b""),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(list_and_watch, plain, plain),
        }
        self.server = grpc.server(futures.ThreadPoolExecutor(8))
        handler = grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)
        self.server.add_generic_rpc_handlers((handler,))
        self.server.add_insecure_port(f"unix://{DIRECTORY}/{self.name}")
        self.server.start()
        with grpc.insecure_channel(f"unix://{DIRECTORY}/kubelet.sock") as channel:
            register = channel.unary_unary("/v1beta1.Registration/Register", cri.encode, plain)
            register({1: "v1beta1", 2: self.name, 3: resource}, timeout=60)

    def close(self):
        self.ending.set()
        self.server.stop(None)
