"""The UNet of Stable Diffusion: Rombach et al. 2022, appendix E.2; Podell et al. 2023, "SDXL", §2.

Latents are (n, height, width, channels).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.files.huggingface.settings import Settings

from .blocks import (
    Attention,
    Downsample,
    FeedForward,
    ResnetBlock,
    TimeEmbedding,
    Upsample,
)
from .networks import Denoiser

KINDS = ("CrossAttnDownBlock2D", "DownBlock2D", "CrossAttnUpBlock2D", "UpBlock2D")


class TransformerBlock(nn.Module):
    """Self-attention of pixels, attention to the text, and feed-forward."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        self.norm1 = nn.LayerNorm(width)
        self.attn1 = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.attn2 = Attention(width, heads, context)
        self.norm3 = nn.LayerNorm(width)
        self.ff = FeedForward(width)

    def __call__(self, x: wx.Array, context: wx.Array) -> wx.Array:
        """Map (n, pixels, width) and the text to (n, pixels, width)."""
        x = x + self.attn1(self.norm1(x))
        x = x + self.attn2(self.norm2(x), context)
        return x + self.ff(self.norm3(x))


class Transformer(nn.Module):
    """Transformer blocks over the pixels of an image, plus the residual."""

    def __init__(self, shape: _Shape, width: int, heads: int, depth: int) -> None:
        # The published code fixes this epsilon; `norm_eps` is for the norms outside.
        self.norm = nn.GroupNorm(shape.groups, width, 1e-6, pytorch_compatible=True)
        made = nn.Linear if shape.linear else _one_pixel
        self.proj_in = made(width, width)
        self.transformer_blocks = [
            TransformerBlock(width, heads, shape.context) for _ in range(depth)
        ]
        self.proj_out = made(width, width)

    def __call__(self, x: wx.Array, context: wx.Array) -> wx.Array:
        """Map (n, height, width, channels) and the text to the same shape."""
        n, height, width, channels = x.shape
        y = self.proj_in(self.norm(x)).reshape(n, height * width, channels)
        for block in self.transformer_blocks:
            y = block(y, context)
        return x + self.proj_out(y.reshape(x.shape))


def _one_pixel(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 1)


class Block(nn.Module):
    """Residual blocks, each maybe followed by attention, and a change of size.

    Parameters
    ----------
    shape : _Shape
    widths : sequence of pairs of int
        Channels into and out of each residual block.
    depth : int
        Transformer blocks after each residual block; 0 for no attention.
    """

    def __init__(
        self, shape: _Shape, widths: Sequence[tuple[int, int]], heads: int, depth: int
    ) -> None:
        self.attentions = [Transformer(shape, b, heads, depth) for _, b in widths if depth]
        self.resnets = [shape.resnet(a, b) for a, b in widths]
        self.downsamplers: list[Downsample] = []
        self.upsamplers: list[Upsample] = []

    def layer(self, i: int, x: wx.Array, time: wx.Array, context: wx.Array) -> wx.Array:
        """Apply residual block `i` and its attention."""
        x = self.resnets[i](x, time)
        return self.attentions[i](x, context) if self.attentions else x


class Middle(nn.Module):
    """Two residual blocks with attention between them."""

    def __init__(self, shape: _Shape, width: int, heads: int, depth: int) -> None:
        self.attentions = [Transformer(shape, width, heads, depth)]
        self.resnets = [shape.resnet(width, width) for _ in range(2)]

    def __call__(self, x: wx.Array, time: wx.Array, context: wx.Array) -> wx.Array:
        """Map (n, height, width, channels) to the same shape."""
        x = self.attentions[0](self.resnets[0](x, time), context)
        return self.resnets[1](x, time)


@nn.published("UNet2DConditionModel")
class UNet(Denoiser):
    """The UNet, which predicts the noise or velocity of latents at a timestep.

    Attributes
    ----------
    outputs : int
        Channels of the result.
    """

    def __init__(self, settings: Settings) -> None:
        shape = _Shape(settings)
        widths = shape.widths
        self.channels = settings.uint("in_channels", default=4)
        self.outputs = settings.uint("out_channels", default=4)
        self.patch = 1
        self.conv_in = nn.Conv2d(self.channels, widths[0], 3, padding=1)
        self.time_embedding = TimeEmbedding(widths[0], shape.times)
        self.add_embedding = (
            TimeEmbedding(settings.uint("projection_class_embeddings_input_dim"), shape.times)
            if shape.number_width
            else None
        )
        self.down_blocks = _down_blocks(shape)
        self.mid_block = Middle(shape, widths[-1], shape.heads[-1], shape.depths[-1])
        self.up_blocks = _up_blocks(shape)
        self.conv_norm_out = nn.GroupNorm(
            shape.groups, widths[0], shape.eps, pytorch_compatible=True
        )
        self.conv_out = nn.Conv2d(widths[0], self.outputs, 3, padding=1)
        self._number_width = shape.number_width
        self._flip = settings.flag("flip_sin_to_cos", default=True)
        self._shift = settings.number("freq_shift", default=0)

    def __call__(
        self,
        x: wx.Array,
        timestep: wx.Array,
        context: wx.Array,
        pooled: wx.Array | None = None,
        numbers: wx.Array | None = None,
    ) -> wx.Array:
        """Predict the noise or velocity of latents.

        Parameters
        ----------
        x : (n, height, width, channels)
            Noisy latents.
        timestep : (n,) or (1,)
            Training step, from 0.
        context : (n, tokens, width)
            States of the text.
        pooled : (n, width) or None
            The pooled text, for SDXL.
        numbers : (n, 6) or None
            Original height and width, top and left of the crop, target height and width, for SDXL.

        Returns
        -------
        (n, height, width, outputs)
        """
        time = self._time(timestep, pooled, numbers)
        x = self.conv_in(x)
        skips = [x]
        for block in self.down_blocks:
            for i in range(len(block.resnets)):
                x = block.layer(i, x, time, context)
                # Every output of the way down is an input of the way up.
                skips.append(x)
            for downsample in block.downsamplers:
                x = downsample(x)
                skips.append(x)
        x = self.mid_block(x, time, context)
        for block in self.up_blocks:
            for i in range(len(block.resnets)):
                x = block.layer(i, wx.concat([x, skips.pop()], axis=-1), time, context)
            for upsample in block.upsamplers:
                # To the size of the next input: odd sizes were rounded up on the way down.
                x = upsample(x, skips[-1].shape[1:3])
        return self.conv_out(nn.silu(self.conv_norm_out(x)))

    def _time(
        self, timestep: wx.Array, pooled: wx.Array | None, numbers: wx.Array | None
    ) -> wx.Array:
        """Embed the timestep, and SDXL's further conditions: (n or 1, times)."""
        width = self.time_embedding.linear_1.weight.shape[1]
        time = self.time_embedding(nn.timestep_embedding(timestep, width, self._flip, self._shift))
        if self.add_embedding is None or pooled is None or numbers is None:
            return time
        n, count = numbers.shape
        vectors = nn.timestep_embedding(
            numbers.reshape(n * count), self._number_width, self._flip, self._shift
        )
        return time + self.add_embedding(
            wx.concat([pooled, vectors.reshape(n, count * self._number_width)], axis=-1)
        )


class _Shape:
    """The sizes of each level, from the finest to the coarsest."""

    def __init__(self, settings: Settings) -> None:
        _require_known(settings)
        self.widths = settings.uints("block_out_channels")
        levels = len(self.widths)
        self.down = settings.texts("down_block_types")
        self.up = settings.texts("up_block_types")
        # Old files have the number of heads under the key of their width, and new ones still do.
        key = "num_attention_heads" if "num_attention_heads" in settings else "attention_head_dim"
        self.heads = _for_levels(settings, key, 8, levels)
        self.depths = _for_levels(settings, "transformer_layers_per_block", 1, levels)
        self.layers = settings.uint("layers_per_block", default=2)
        self.groups = settings.uint("norm_num_groups", default=32)
        self.eps = settings.number("norm_eps", default=1e-5)
        self.context = settings.uint("cross_attention_dim", default=1280)
        self.linear = settings.flag("use_linear_projection", default=False)
        # As in the published code, which has no setting for it.
        self.times = 4 * self.widths[0]
        is_xl = settings.text("addition_embed_type", default="") == "text_time"
        self.number_width = settings.uint("addition_time_embed_dim") if is_xl else 0

    def resnet(self, inputs: int, outputs: int) -> ResnetBlock:
        """Make a residual block that takes time embeddings."""
        return ResnetBlock(inputs, outputs, groups=self.groups, eps=self.eps, times=self.times)


def _down_blocks(shape: _Shape) -> list[Block]:
    blocks: list[Block] = []
    for i, (before, width) in enumerate(pairwise([shape.widths[0], *shape.widths])):
        inputs = [before, *[width] * (shape.layers - 1)]
        depth = shape.depths[i] if "CrossAttn" in shape.down[i] else 0
        blocks.append(Block(shape, [(a, width) for a in inputs], shape.heads[i], depth))
    for block, width in zip(blocks[:-1], shape.widths, strict=False):
        block.downsamplers = [Downsample(width)]
    return blocks


def _up_blocks(shape: _Shape) -> list[Block]:
    """Make the upward blocks, which also read the outputs of the downward ones in reverse order."""
    skips = [shape.widths[0]]
    for i, width in enumerate(shape.widths):
        # Every level but the last also has the output of its downsampling.
        skips += [width] * (shape.layers + (i < len(shape.widths) - 1))
    blocks: list[Block] = []
    x = shape.widths[-1]
    for i, width in enumerate(reversed(shape.widths)):
        pairs: list[tuple[int, int]] = []
        # One more than on the way down, for the input of the level.
        for _ in range(shape.layers + 1):
            pairs.append((x + skips.pop(), width))
            x = width
        level = len(shape.widths) - 1 - i
        depth = shape.depths[level] if "CrossAttn" in shape.up[i] else 0
        blocks.append(Block(shape, pairs, shape.heads[level], depth))
    for block, width in zip(blocks[:-1], reversed(shape.widths), strict=False):
        block.upsamplers = [Upsample(width)]
    return blocks


def _for_levels(settings: Settings, key: str, default: int, levels: int) -> list[int]:
    """Return a number for each level from a key, which may have one for all."""
    value = settings.value(key)
    if isinstance(value, list):
        found = settings.uints(key)
        if len(found) != levels:
            raise settings.error(key, f"has {len(found)} numbers, needs {levels}")
        return found
    return [settings.uint(key, default=default)] * levels


def _require_known(settings: Settings) -> None:
    """Refuse settings of this class's other networks, which are not supported."""
    for name in ("down_block_types", "up_block_types"):
        for kind in settings.texts(name):
            if kind not in KINDS:
                raise settings.error(name, f"has {kind!r}, needs one of {', '.join(KINDS)}")
    known = {
        "act_fn": "silu",
        "mid_block_type": "UNetMidBlock2DCrossAttn",
        "resnet_time_scale_shift": "default",
        "time_embedding_type": "positional",
    }
    for name, value in known.items():
        if settings.text(name, default=value) != value:
            raise settings.error(name, f"is {settings.text(name)!r}, needs {value!r}")
    for name in ("class_embed_type", "encoder_hid_dim_type", "num_class_embeds"):
        if settings.value(name) is not None:
            raise settings.error(name, f"is {settings.value(name)!r}, known is none")
    kind = settings.text("addition_embed_type", default="")
    if kind not in ("", "text_time"):
        raise settings.error("addition_embed_type", f"is {kind!r}, known is 'text_time'")
