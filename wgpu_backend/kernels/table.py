"""The table of kernel families, in the order in which a device tries them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch, Operation
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels.gpu import FAMILY as GPU
from wgpu_backend.kernels.kernel import Family, Kernel
from wgpu_backend.kernels.rasteriser import FAMILY as RASTERISER
from wgpu_backend.ops.layouts.layout import WeightLayout

FAMILIES: Sequence[Family] = (
    RASTERISER,
    GPU,
)  # fmt: skip


def _by_op() -> Mapping[str, Sequence[Kernel]]:
    found: defaultdict[str, list[Kernel]] = defaultdict(list)
    for family in FAMILIES:
        for kernel in family.kernels:
            found[kernel.op].append(kernel)
    return dict(found)


_BY_OP = _by_op()


def select(op: Operation, launch: Launch, capabilities: Capabilities) -> Launch:
    """Return the launch that a device runs: of a family's kernel, or else the op's own.

    Parameters
    ----------
    launch : Launch
        The op's own.
    """
    for kernel in _BY_OP.get(op.name, ()):
        if kernel.suits(capabilities) and (built := kernel.build(launch, capabilities)):
            return built
    return op.select(launch, capabilities) if op.select else launch


def select_layout(spec: Spec, capabilities: Capabilities, *, rounded: bool) -> WeightLayout | None:
    """Return the layout of a weight on a device: the first that a family offers; None for planes.

    Parameters
    ----------
    rounded : bool
        Whether products may round activations to eight bits.
    """
    offers = (offer for family in FAMILIES for offer in family.layouts)
    found = (offer(spec, capabilities, rounded=rounded) for offer in offers)
    return next((layout for layout in found if layout is not None), None)


def runs(op: Operation, launch: Launch, capabilities: Capabilities) -> bool:
    """Return whether a device's family has a kernel for a launch that fusion rules may make."""
    try:
        return not select(op, launch, capabilities).last_resort
    except DeviceError:
        return False


def complete(capabilities: Capabilities) -> Capabilities:
    """Complete the capabilities of a device with those that families derive."""
    for family in FAMILIES:
        if family.complete:
            capabilities = family.complete(capabilities)
    return capabilities
