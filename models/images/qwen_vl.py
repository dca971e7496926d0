"""Qwen2.5-VL as a text encoder: Bai et al. 2025, "Qwen2.5-VL Technical Report", §2.1.

A vision tower makes one token of every four patches of an image; most of its layers attend within
windows. The tokens are inserted into the text, which is encoded by Qwen2's layers.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.errors import ShapeError
from wgpu_backend.files.huggingface.settings import Settings

from .networks import Network
from .qwen_text import GatedFeedForward, Ids, Layers, head_cols

# Epsilon of the tower's norms.
EPS = 1e-6
THETA = 10000.0
Grid = tuple[int, int, int]


class Attention(nn.Module):
    """Attention of patches within runs."""

    def __init__(self, width: int, heads: int) -> None:
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self._heads = heads

    def __call__(self, x: wx.Array, rope: wx.Array, ends: list[int]) -> wx.Array:
        """Map (patches, width) to the same shape; runs begin at 0 and at each end but the last."""
        patches, width = x.shape
        parts = self.qkv(x).reshape(1, patches, 3, self._heads, width // self._heads)
        q, k, v = (parts[:, :, i] for i in range(3))
        q, k = nn.rotated(q, rope), nn.rotated(k, rope)
        runs = [nn.attend(*(part[:, a:b] for part in (q, k, v))) for a, b in pairwise([0, *ends])]
        return self.proj(wx.concat(runs, axis=1).reshape(patches, width))


class Block(nn.Module):
    """A pre-norm layer of attention and feed-forward with residuals."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        self.norm1, self.norm2 = (nn.RMSNorm(width, EPS) for _ in range(2))
        self.attn = Attention(width, heads)
        self.mlp = GatedFeedForward(width, inner, bias=True)

    def __call__(self, x: wx.Array, rope: wx.Array, ends: list[int]) -> wx.Array:
        """Map (patches, width) to the same shape."""
        x = x + self.attn(self.norm1(x), rope, ends)
        return x + self.mlp(self.norm2(x))


class PatchEmbedding(nn.Module):
    """The embedding of patches.

    Attributes
    ----------
    proj : Linear
        Stored as a convolution whose kernel has the size of a patch.
    """

    def __init__(self, settings: Settings, width: int) -> None:
        side = settings.uint("patch_size", default=14)
        frames = settings.uint("temporal_patch_size", default=2)
        colours = settings.uint("in_channels", "in_chans", default=3)
        self.proj = Kernel(width, (colours, frames, side, side))

    def __call__(self, patches: wx.Array) -> wx.Array:
        """Map (patches, values) to (patches, width)."""
        return self.proj(patches)


class Kernel(nn.Module):
    """A linear layer whose weight has several input axes.

    Attributes
    ----------
    weight : (outputs, ...)
    """

    def __init__(self, outputs: int, inputs: tuple[int, ...]) -> None:
        self.weight = wx.zeros((outputs, *inputs))

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (rows, inputs) to (rows, outputs)."""
        return x @ self.weight.reshape(self.weight.shape[0], -1).T


class Merger(nn.Module):
    """The merger of the patches of a square into one token."""

    def __init__(self, width: int, count: int, outputs: int) -> None:
        inner = count * width
        self.ln_q = nn.RMSNorm(width, EPS)
        self.mlp = [nn.Linear(inner, inner), nn.GELU(), nn.Linear(inner, outputs)]
        self._count = count

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (patches, width) to (squares, outputs)."""
        y = self.ln_q(x).reshape(x.shape[0] // self._count, self._count * x.shape[1])
        for part in self.mlp:
            y = part(y)
        return y


class Tower(nn.Module):
    """The vision tower, which turns the patches of an image into tokens of a text.

    Parameters
    ----------
    settings : Settings
        ``vision_config`` of config.json.
    """

    def __init__(self, settings: Settings) -> None:
        width, heads = settings.uint("hidden_size"), settings.uint("num_heads")
        self.patch_embed = PatchEmbedding(settings, width)
        depth, inner = settings.uint("depth"), settings.uint("intermediate_size")
        self.blocks = [Block(width, heads, inner) for _ in range(depth)]
        self._merge = settings.uint("spatial_merge_size", default=2)
        self.merger = Merger(width, self._merge**2, settings.uint("out_hidden_size"))
        self._cols = head_cols(settings)
        self._whole = set(settings.uints("fullatt_block_indexes", default=[7, 15, 23, 31]))
        side = self._merge * settings.uint("patch_size", default=14)
        self._window = max(settings.uint("window_size", default=112) // side, 1)

    def __call__(self, patches: NDArray[np.float32], grid: Grid) -> wx.Array:
        """Return the image's tokens: (squares, width of the text).

        Parameters
        ----------
        patches : (patches, values), f32
            Patches, those of a square in sequence.
        grid : (int, int, int)
            Patches in time, rows, columns.
        """
        rows, columns = grid[1] // self._merge, grid[2] // self._merge
        order, ends = windows(rows, columns, self._window)
        count = self._merge**2
        x = patches.reshape(rows * columns, count, -1)[order].reshape(patches.shape)
        rope = wx.array(self._rope(rows, columns, order))
        # Windows count squares, and attention counts patches.
        ends = [end * count for end in ends]
        y = self.patch_embed(wx.array(np.ascontiguousarray(x)))
        for i, block in enumerate(self.blocks):
            y = block(y, rope, [len(patches)] if i in self._whole else ends)
        # Back from the order of windows to that of the image.
        return self.merger(y)[wx.array(np.argsort(order).astype(np.int32))]

    def _rope(self, rows: int, columns: int, order: Ids) -> NDArray[np.float32]:
        """Return cosines and sines (patches, pairs, 2): rows rotate half of the pairs."""
        merge, half = self._merge, self._cols // 2
        y, x = np.mgrid[: rows * merge, : columns * merge]
        places = np.stack([y, x], -1).reshape(rows, merge, columns, merge, 2)
        ordered = places.transpose(0, 2, 1, 3, 4).reshape(rows * columns, merge**2, 2)[order]
        exponents = np.arange(0, half, 2, dtype=np.float32) / np.float32(half)
        frequencies = np.float32(1) / np.float32(THETA) ** exponents
        angles = ordered.reshape(-1, 2, 1).astype(np.float32) * frequencies
        angles = angles.reshape(len(angles), -1)
        return np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)


def windows(rows: int, columns: int, side: int) -> tuple[Ids, list[int]]:
    """Return the squares in the order of their windows, and the end of each window."""
    numbers = np.arange(rows * columns).reshape(rows, columns)
    parts = [
        numbers[i : i + side, j : j + side].ravel()
        for i in range(0, rows, side)
        for j in range(0, columns, side)
    ]
    return np.concatenate(parts), np.cumsum([len(part) for part in parts]).tolist()


def picture_places(ids: Ids, marker: int, grid: Grid, merge: int) -> Ids:
    """Return the positions (tokens, 3) of a text with an image: time, row and column.

    Parameters
    ----------
    ids : (tokens,), int
        Tokens.
    marker : int
        Id of the image's tokens.
    grid : (int, int, int)
        Patches in time, rows, columns.
    merge : int
        Patches along the side of a token.
    """
    rows, columns = grid[1] // merge, grid[2] // merge
    marked = np.flatnonzero(ids == marker)
    start, count = int(marked[0]), len(marked)
    y, x = np.divmod(np.arange(count), columns)
    inside = start + np.stack([np.zeros(count, np.int64), y, x], 1)
    before = np.repeat(np.arange(start)[:, None], 3, 1)
    # The text goes on after the longer side, not after as many positions as tokens.
    behind = np.arange(len(ids) - start - count) + start + max(rows, columns)
    return np.concatenate([before, inside, np.repeat(behind[:, None], 3, 1)])


@nn.published("Qwen2_5_VLForConditionalGeneration")
class QwenVLEncoder(Network):
    """Qwen2.5-VL without its output matrix.

    Attributes
    ----------
    marker : int
        Id that stands for a token of an image.
    merge : int
        Patches along the side of an image's token.
    """

    ignored = (r"lm_head\.weight",)
    renamed = ((r"^model\.language_model\.", "model."), (r"^model\.visual\.", "visual."))

    def __init__(self, settings: Settings) -> None:
        text = settings.section("text_config") if "text_config" in settings else settings
        vision = settings.section("vision_config")
        self.model = Layers(text, normed=False)
        self.visual = Tower(vision)
        self.marker = settings.uint("image_token_id", default=151655)
        self.merge = vision.uint("spatial_merge_size", default=2)

    def __call__(
        self,
        ids: Ids,
        patches: NDArray[np.float32] | None = None,
        grid: Grid | None = None,
        *,
        in_a_row: bool = False,
    ) -> list[wx.Array]:
        """Return the states of a text, maybe with an image: (1, tokens, width) each; see `Layers`.

        Parameters
        ----------
        ids : (tokens,), int
            Tokens, with one marker for each token of the image, in sequence.
        patches, grid
            See `Tower`; None without an image.
        in_a_row : bool
            Whether the image's tokens have positions like text. transformers 5 counts them so if
            its caller does not mark them, which diffusers 0.42 does not.

        Raises
        ------
        ShapeError
            The number of markers differs from that of the image's tokens.
        """
        x = self.model.embed_tokens(wx.array(ids.astype(np.int32)))
        places = np.arange(len(ids))
        if patches is not None and grid is not None:
            x = self._with_picture(x, ids, self.visual(patches, grid))
            if not in_a_row:
                places = picture_places(ids, self.marker, grid, self.merge)
        return self.model(x[None], places)

    def _with_picture(self, x: wx.Array, ids: Ids, tokens: wx.Array) -> wx.Array:
        marked = np.flatnonzero(ids == self.marker)
        if len(marked) != tokens.shape[0] or marked[-1] - marked[0] + 1 != len(marked):
            raise ShapeError(
                f"qwen-vl: the text has {len(marked)} image tokens, the picture has "
                f"{tokens.shape[0]}; needs as many, next to each other"
            )
        start, end = int(marked[0]), int(marked[-1]) + 1
        return wx.concat([x[:start], tokens, x[end:]])
