"""Norms and softmax of rows, which the lanes of a work group reduce together."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch
from wgpu_backend.ops.linear.q8_rounding import GROUP
from wgpu_backend.ops.reduce.norm import reducing_rows

OPS = ("rms_norm", "rms_norm_add", "norm_chain", "layer_norm", "softmax", "l2_norm")
LONG_ROW = 1024  # values from which on more threads share a row
THREADS = 256


def by_subgroups(launch: Launch, _: Capabilities) -> Launch:
    """Reduce rows by subgroups: two barriers instead of one for each step of a tree."""
    return _share_rows(launch, launch.count("cols"))


def pair(launch: Launch, _: Capabilities) -> Launch:
    """Normalise and round twice, with eight lanes a group."""
    found = replace(launch, shader="kernels/gpu/rms_norm_pair")
    return _share_rows(found, GROUP * launch.count("groups"))


def _share_rows(launch: Launch, cols: int) -> Launch:
    """Return a launch of one work group a row, with as many threads as the row is worth."""
    launch = reducing_rows(launch, "kernels/gpu/lib/row_subgroups")
    if cols < LONG_ROW:
        return launch
    return replace(launch, choices={**launch.choices, "WG": THREADS})
