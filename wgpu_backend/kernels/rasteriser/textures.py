"""Weights in textures: which of them lie there, and the WGSL of kernels that read them."""

from __future__ import annotations

from wgpu_backend.graph.capabilities import TEXEL_NBYTES, Capabilities
from wgpu_backend.graph.node import Launch
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels.rasteriser.capabilities import shuffles
from wgpu_backend.kernels.rasteriser.layouts import block_texture, float_texture
from wgpu_backend.kernels.rasteriser.layouts.float_texture import GROUP
from wgpu_backend.ops.layouts.layout import WeightLayout, find_layout
from wgpu_backend.ops.linear.gates import joined_rows

# Values of a vector.
VECTOR = 4


def in_textures(spec: Spec, capabilities: Capabilities, *, rounded: bool) -> WeightLayout | None:
    """Return the texture layout of a matrix with rows of whole groups: of floats, or of blocks.

    Parameters
    ----------
    capabilities : Capabilities
        Kernels of lanes that shuffle values read textures, and no others.
    rounded : bool
        Blocks lie as products with activations in eight bits read them.
    """
    if not shuffles(capabilities) or len(spec.shape) != 2 or not spec.size:
        return None
    cols = spec.shape[-1]
    found = float_texture.layout(spec.dtype, cols)
    if found is None and rounded:
        found = block_texture.layout(spec.dtype, cols)
    if found is None or not found.most_rows(capabilities):
        return None
    # Parts of a weight begin where slices may, and are no larger than those in buffers.
    part_nbytes = found.slice_rows * spec.dtype.nbytes(cols)
    return found if 2 * part_nbytes <= capabilities.max_binding_nbytes else None


def lies_in_texture(launch: Launch, operand: str, capabilities: Capabilities) -> bool:
    """Return whether an operand is whole rows of a weight that is in a texture."""
    node = launch.operands[operand]
    layout = find_layout(node)
    if layout is None or layout.home != "texture" or not shuffles(capabilities):
        return False
    # Rows that are joined are so many apart, and both have to be found.
    apart = joined_rows(launch) == 1 or launch.count("m") % layout.slice_rows == 0
    return layout.shows(node.spec) and apart


def in_texture(launch: Launch, operand: str, texels: int = 1) -> dict[str, str | int]:
    """Return the shader choices by which a kernel reads an operand's values from a texture.

    Parameters
    ----------
    texels : int
        Taken at once: one leaves room in registers, all four of 32 values in f16 are the faster
        the longer those who load them compute with them.
    """
    layout, dtype = _layout(launch, operand), launch.operands[operand].spec.dtype
    choices = read_by(layout, operand, "source")
    if dtype.quantised:
        return choices
    vectors = TEXEL_NBYTES // (VECTOR * dtype.block_nbytes) * texels
    parts = GROUP // (VECTOR * vectors)
    return {**choices, "TEXELS": texels, "source_VEC4S": vectors, "source_PARTS": parts}


def groups_in_texture(launch: Launch, operand: str) -> dict[str, str | int]:
    """Return the shader choices by which a kernel reads groups in eight bits from a texture."""
    return read_by(_layout(launch, operand), operand, "reader")


def read_by(layout: WeightLayout, operand: str, module: str) -> dict[str, str | int]:
    """Return the modules and constants by which a kernel that imports `module` reads an operand."""
    modules = {module: layout.modules[module], operand: layout.modules["weights"]}
    return {**modules, **layout.constants}


def _layout(launch: Launch, operand: str) -> WeightLayout:
    layout = find_layout(launch.operands[operand])
    assert layout is not None, f"{operand} of {launch.shader} is in planes, needs a texture"
    return layout
