"""runc and crun, with nothing above them."""
from kit import bundle, node


class Hooks(node.Case):
    """The hooks in the bundle's own configuration."""

    needs = ("runc",)
    runtime = "runc"

    def test_slice(self):
        def edit(config):
            config["hooks"] = bundle.hooks(self.node.run)
        ask = {"gpuslice.io/memory": "256MiB"}
        container = bundle.Bundle(self, self.runtime, "hooked", node.TENANT, ask, edit=edit).start()
        self.judge_slice(container)
        container.stop()
        self.no_slice_is_left()


class HooksOfCrun(Hooks):
    needs = ("crun",)
    runtime = "crun"
