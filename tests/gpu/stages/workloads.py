"""What a slice costs whole workloads of a tenant that is alone on its card; bare and sliced interleaved."""
from kit import place
from stages import overhead

WORKLOADS = [("training step", "train"), ("allocation storm", "allocations")]
SECONDS = 120


def run(here, result):
    if here.sim:
        raise place.Skip("the simulated driver serves driver-API programs only")
    methods = [method for method, why in here.injection_methods() if why is None]
    overhead.workloads(here, result, methods, WORKLOADS, SECONDS)
