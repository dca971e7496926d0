"""A row of the table of kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from wgpu_backend.device_info import Capabilities
from wgpu_backend.graph.node import Launch

Suits = Callable[[Capabilities], bool]
Build = Callable[[Launch, Capabilities], Launch | None]


class Kernel(NamedTuple):
    """What a family runs in place of an op's portable kernel.

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


def rows(ops: Iterable[str], suits: Suits, build: Build) -> list[Kernel]:
    """Rows of ops that share a kernel."""
    return [Kernel(op, suits, build) for op in ops]
