"""The table of kernels: families in the order in which they are asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from wgpu_backend.device_info import Capabilities
from wgpu_backend.graph.node import Launch, Operation
from wgpu_backend.kernels import gpu, rasteriser
from wgpu_backend.kernels.kernel import Kernel

FAMILIES: Mapping[str, Sequence[Kernel]] = {
    "rasteriser": rasteriser.KERNELS,
    "gpu": gpu.KERNELS,
}


def _by_op() -> Mapping[str, Sequence[Kernel]]:
    found: defaultdict[str, list[Kernel]] = defaultdict(list)
    for kernels in FAMILIES.values():
        for kernel in kernels:
            found[kernel.op].append(kernel)
    return dict(found)


_BY_OP = _by_op()


def select(op: Operation, launch: Launch, capabilities: Capabilities) -> Launch:
    """Launch that a device runs: of a family's kernel, or else the op's own.

    Parameters
    ----------
    op : Operation
    launch : Launch
        The op's own.
    capabilities : Capabilities
    """
    for kernel in _BY_OP.get(op.name, ()):
        if kernel.suits(capabilities) and (built := kernel.build(launch, capabilities)):
            return built
    return op.select(launch, capabilities) if op.select else launch
