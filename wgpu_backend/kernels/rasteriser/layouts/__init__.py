"""Layouts of weights in textures, in the order in which lanes of a rasteriser read them."""

from __future__ import annotations

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels.rasteriser.capabilities import shuffles
from wgpu_backend.kernels.rasteriser.layouts import block_texture, float_texture
from wgpu_backend.ops.layouts.layout import WeightLayout


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
