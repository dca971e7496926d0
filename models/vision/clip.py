"""The picture halves of CLIP and SigLIP, whose vectors are in one space with those of texts.

Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision", §2.4:
the projected state of the class token. Zhai et al. 2022, "Scaling Vision Transformers", §3.2, which
SigLIP follows: one learned query attends to all patches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.mlp import activated
from wgpu_backend.nn.module import Module
from wgpu_backend.nn.tower import Media, Rows, make_media, projector
from wgpu_backend.nn.vision.blocks import LayerSizes
from wgpu_backend.nn.vision.processing import crop_centre, fit_shortest, resize
from wgpu_backend.nn.vision.tiles import TiledTower


@projector("clip-vector")
class ClipVision(TiledTower):
    """CLIP's picture half."""

    placeholder = "<image>"
    class_place = "first"

    projection: nn.Linear = nn.weight("mm.visual_projection", "cols", "width")

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend, LayerSizes.from_config(backend.config))
        if self.post_norm is None:
            raise self.fail("tensor v.post_ln.weight is missing")

    def prepare(self, source: NDArray[Any]) -> Media:
        """Resize a picture by its shorter side and crop its centre."""
        scaled = resize(source, *fit_shortest(source.shape[:2], self.tile))
        tile = crop_centre(scaled, (self.tile, self.tile))
        return make_media({"patches": self.split([tile])}, [Rows(1)])

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return one vector: (1, cols)."""
        assert self.post_norm is not None
        last = self.list_states(context, inputs["patches"])[-1]
        return self.projection(self.post_norm(last.slice(0, 0, 1).contiguous()))


class AttentionPool(Module):
    """Attention of a learned query, and a feed-forward network with a residual."""

    query: Tensor = nn.weight("probe")
    qkv: nn.Linear = nn.weight("attn_qkv", "three_widths", "width")
    out: nn.Linear = nn.weight("attn_out", "width", "width")
    norm: nn.LayerNorm
    up: nn.Linear = nn.weight("ffn_up", "inner", "width")
    down: nn.Linear = nn.weight("ffn_down", "width", "inner")

    def __init__(self, sizes: LayerSizes) -> None:
        self.sizes, self.width, self.inner = sizes, sizes.width, sizes.inner
        self.three_widths = 3 * sizes.width
        self.norm = nn.weight("ln", "width", kind=nn.LayerNorm(sizes.eps), needed=True)

    def __call__(self, x: Tensor) -> Tensor:
        """Pool (patches, width) to (1, width)."""
        # The query's row follows those of the patches, so that one product maps all.
        rows = self.qkv(x.concat(self.query.reshape(1, self.width), axis=0))
        count, width = x.shape[0], self.width
        q = self._heads(rows.slice(0, count, count + 1).slice(-1, 0, width))
        k, v = (
            self._heads(rows.slice(0, 0, count).slice(-1, i * width, (i + 1) * width))
            for i in (1, 2)
        )
        factor = self.sizes.head**-0.5
        pooled = q.scaled_dot_product_attention(k, v, scale=factor).contiguous()
        y = self.out(pooled.reshape(1, width))
        return y.add(self.down(activated(self.sizes.activation, self.up(self.norm(y)))))

    def _heads(self, x: Tensor) -> Tensor:
        return x.contiguous().reshape(1, x.shape[0], self.sizes.heads, self.sizes.head)


@projector("siglip-vector")
class SiglipVision(TiledTower):
    """SigLIP's picture half."""

    placeholder = "<image>"

    def __init__(self, backend: Backend) -> None:
        sizes = LayerSizes.from_config(backend.config)
        super().__init__(backend, sizes, cols=sizes.width)
        self.pool = AttentionPool(sizes)
        self.fill(self.pool, "v.head.")
        if self.pool.query.size != self.width:
            raise self.fail(f"tensor v.head.probe is {self.pool.query.shape}, needs {self.width}")

    def prepare(self, source: NDArray[Any]) -> Media:
        """Resize a picture to the tower's size, without keeping proportions."""
        tile = resize(source, self.tile, self.tile)
        return make_media({"patches": self.split([tile])}, [Rows(1)])

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return one vector: (1, cols)."""
        return self.pool(self.encode_tiles(context, inputs["patches"]))
