"""Kernels of rows on rasterisers: a thread or a subgroup of eight each, and rows of textures."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels.rasteriser.capabilities import LANES
from wgpu_backend.kernels.rasteriser.folder import FOLDER, LIB
from wgpu_backend.kernels.rasteriser.textures import in_texture, lies_in_texture
from wgpu_backend.ops.conv.convolution import set_group_size
from wgpu_backend.ops.index.launches import GROUP
from wgpu_backend.ops.reduce.norm import reducing_rows
from wgpu_backend.ops.reduce.scan import count_blocks


def sort_rows(launch: Launch, _: Capabilities) -> Launch:
    """Sort rows, one per thread."""
    return _alone(launch, "sort_rows", launch.out.shape[0])


def select_top_k(launch: Launch, _: Capabilities) -> Launch:
    """Select the largest values of rows, one row per thread."""
    return _alone(launch, "select_top_k", launch.out.shape[0])


def route(launch: Launch, _: Capabilities) -> Launch:
    """Choose the experts of tokens, one token per thread."""
    return _alone(launch, "route", launch.count("rows"))


def scan(launch: Launch, _: Capabilities) -> Launch:
    """Add up blocks, one per thread."""
    rows, cols = launch.out.shape
    return _alone(launch, "scan", rows * count_blocks(cols))


def radix_count(launch: Launch, _: Capabilities) -> Launch:
    """Count the digits of chunks, one chunk per thread."""
    return _alone(launch, "radix_count", _chunks(launch, launch.out))


def radix_scatter(launch: Launch, _: Capabilities) -> Launch:
    """Move the keys of chunks, one chunk per thread."""
    return _alone(launch, "radix_scatter", _chunks(launch, launch.operands["ends"].spec))


def _chunks(launch: Launch, table: Spec) -> int:
    """Return how many chunks of keys a table of digits has columns for."""
    return table.size // int(launch.choices["BINS"])


def _alone(launch: Launch, shader: str, threads: int) -> Launch:
    return replace(launch, shader=f"{FOLDER}/{shader}", groups=None, threads=threads)


NORMS = ("rms_norm", "rms_norm_add", "norm_chain", "layer_norm", "softmax", "l2_norm")


def convolve(launch: Launch, _: Capabilities) -> Launch | None:
    """Convolve by vectors of channels; other layouts have one thread per value anyway."""
    return None if launch.shader == "ops/conv/convolve_plain" else set_group_size(launch, LANES)


def top_k(launch: Launch, _: Capabilities) -> Launch:
    """Select the largest values of each part of a row."""
    return replace(launch, choices={**launch.choices, "WG": LANES})


def norm(launch: Launch, _: Capabilities) -> Launch:
    """Reduce a row by one subgroup, because a barrier makes a CPU spill all registers."""
    return reducing_rows(launch, f"{LIB}/row_subgroup")


def from_texture(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Gather rows of a weight that is in a texture; None for other operands."""
    matrix = launch.shader in ("", "ops/index/rows_quant") and "weights" in launch.operands
    if not matrix or not lies_in_texture(launch, "weights", capabilities):
        return None
    choices = {**launch.choices, **in_texture(launch, "weights")}
    if launch.shader == "ops/index/rows_quant":
        return replace(launch, choices=choices)
    size, cols = launch.count("size"), launch.count("cols")
    params = {
        "size": size // GROUP,
        "groups": cols // GROUP,
        "count": launch.count("count"),
        "rows": launch.count("rows"),
    }
    return replace(
        launch, threads=size // GROUP, params=params, shader="ops/index/rows_quant", choices=choices
    )
