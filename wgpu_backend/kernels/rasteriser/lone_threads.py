"""Kernels with one thread per row, or per chunk of one."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels.rasteriser.folder import FOLDER
from wgpu_backend.ops.reduce.scan import count_blocks


def sort_rows(launch: Launch, _: Capabilities) -> Launch:
    """Sort a row a thread."""
    return _alone(launch, "sort_rows", launch.out.shape[0])


def select_top_k(launch: Launch, _: Capabilities) -> Launch:
    """Choose the largest of a row a thread."""
    return _alone(launch, "select_top_k", launch.out.shape[0])


def route(launch: Launch, _: Capabilities) -> Launch:
    """Choose the experts of a token a thread."""
    return _alone(launch, "route", launch.count("rows"))


def scan(launch: Launch, _: Capabilities) -> Launch:
    """Add up a block a thread."""
    rows, cols = launch.out.shape
    return _alone(launch, "scan", rows * count_blocks(cols))


def radix_count(launch: Launch, _: Capabilities) -> Launch:
    """Count the digits of a chunk a thread."""
    return _alone(launch, "radix_count", _chunks(launch, launch.out))


def radix_scatter(launch: Launch, _: Capabilities) -> Launch:
    """Move the keys of a chunk a thread."""
    return _alone(launch, "radix_scatter", _chunks(launch, launch.operands["ends"].spec))


def _chunks(launch: Launch, table: Spec) -> int:
    """Return how many chunks of keys a table of digits has columns for."""
    return table.size // int(launch.choices["BINS"])


def _alone(launch: Launch, shader: str, threads: int) -> Launch:
    return replace(launch, shader=f"{FOLDER}/{shader}", groups=None, threads=threads)
