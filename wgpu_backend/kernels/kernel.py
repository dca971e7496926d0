"""The parts of a device family: kernels, and layouts of weights that they read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch
from wgpu_backend.kernels.cases import FusionCase
from wgpu_backend.ops.layouts.layout import Offer

Suits = Callable[[Capabilities], bool]
Build = Callable[[Launch, Capabilities], Launch | None]


class Kernel(NamedTuple):
    """A family's replacement of an op's portable kernel.

    Parameters
    ----------
    op : str
        Name of the op.
    suits : callable
        Whether a device can run the kernel.
    build : callable
        Makes the kernel's launch from the op's; None where the kernel does not take the operands.
    """

    op: str
    suits: Suits
    build: Build


def kernels_for(ops: Iterable[str], suits: Suits, build: Build) -> list[Kernel]:
    """Return the table rows of several ops that share a kernel."""
    return [Kernel(op, suits, build) for op in ops]


class Family(NamedTuple):
    """The kernels that some devices run instead of the ops' own, with layouts and self-test cases.

    Parameters
    ----------
    name : str
        As the folder.
    kernels : sequence of Kernel
        Tried in this order.
    layouts : sequence of Offer
        Layouts of weights, tried in this order.
    cases : sequence of FusionCase
        Graphs with which the self-test checks the fusion rules of the family.
    complete : callable or None
        Adds what the family knows of a device to its capabilities.
    """

    name: str
    kernels: Sequence[Kernel]
    layouts: Sequence[Offer] = ()
    cases: Sequence[FusionCase] = ()
    complete: Callable[[Capabilities], Capabilities] | None = None
