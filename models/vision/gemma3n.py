"""Gemma 3n's tower: MobileNet-v5, Gemma Team 2025, "Gemma 3n".

Convolutions and attention over maps of channels, as in Qin et al. 2024, "MobileNetV4", §3 and §4:
inverted bottlenecks with convolutions of each channel, and attention whose heads share keys and
values. The maps of the last two stages are joined, and averaged to a square of rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.tower import Media, Rows, Tower, make_media, projector
from wgpu_backend.nn.vision.processing import Filter, resize, scale_unit

EPS = 1e-6
STAGES = 4
SIDE = 16  # rows along a side of the result
_BLOCK = re.compile(r"v\.blk\.(\d+)\.(\d+)\.")


class Convolution(nn.Module):
    """A convolution with "same" padding over maps (1, height, width, channels), and maybe a norm.

    A kernel of one input channel is a convolution of each channel.
    """

    kernel: Tensor
    norm: Tensor | None

    def __init__(self, name: str, norm: str | None = None) -> None:
        self.kernel = nn.weight(f"{name}.weight")
        self.norm = None if norm is None else nn.weight(f"{norm}.weight", needed=False)

    def __call__(self, x: Tensor, stride: int = 1) -> Tensor:
        """Map (1, height, width, channels) to (1, height / stride, width / stride, outputs)."""
        outputs, inputs, side, _ = self.kernel.shape
        if side == 1 and stride == 1:
            kernel = self.kernel.reshape(outputs, inputs)
            y = kernel.linear(x.reshape(-1, inputs), None).reshape(*x.shape[:3], outputs)
        else:
            # Odd sums have the larger part below and on the right.
            pads = [
                max((-(-length // stride) - 1) * stride + side - length, 0)
                for length in x.shape[1:3]
            ]
            around = [(each // 2, each - each // 2) for each in pads]
            groups = outputs if inputs == 1 else 1
            y = x.conv2d(self.kernel.permute(0, 2, 3, 1), (stride, stride), around, (1, 1), groups)
        return y if self.norm is None else y.rms_norm(self.norm, eps=EPS)


class EdgeBlock(nn.Module):
    """A convolution that widens, and one that narrows the channels (stage 0)."""

    def __init__(self) -> None:
        self.widen = nn.weight("", kind=Convolution("conv_exp", "bn1"))
        self.narrow = nn.weight("", kind=Convolution("conv_pwl", "bn2"))

    def __call__(self, x: Tensor, stride: int) -> Tensor:
        """Map a map to one of 1 / stride of its sides."""
        return _add_if_same(self.narrow(self.widen(x, stride).gelu()), x)


class InvertedBlock(nn.Module):
    """A universal inverted bottleneck (§3), with up to two convolutions of each channel."""

    start: Convolution | None
    middle: Convolution | None
    scale: Tensor | None = nn.weight("layer_scale.gamma")

    def __init__(self, has_start: bool, has_middle: bool) -> None:
        self.start = self.middle = None
        if has_start:
            self.start = nn.weight("", kind=Convolution("dw_start.conv", "dw_start.bn"))
        if has_middle:
            self.middle = nn.weight("", kind=Convolution("dw_mid.conv", "dw_mid.bn"))
        self.widen = nn.weight("", kind=Convolution("pw_exp.conv", "pw_exp.bn"))
        self.narrow = nn.weight("", kind=Convolution("pw_proj.conv", "pw_proj.bn"))

    def __call__(self, x: Tensor, stride: int) -> Tensor:
        """Map a map to one of 1 / stride of its sides."""
        y = x
        if self.start is not None:
            y = self.start(y, 1 if self.middle is not None else stride)
        y = self.widen(y).gelu()
        if self.middle is not None:
            y = self.middle(y, stride).gelu()
        return _add_if_same(_scale(self.narrow(y), self.scale), x)


class MobileAttention(nn.Module):
    """Attention whose heads share keys and values, of a smaller map in some stages (§4)."""

    norm: Tensor = nn.weight("norm.weight")
    smaller_keys: Convolution | None
    smaller_values: Convolution | None
    scale: Tensor | None = nn.weight("layer_scale.gamma")

    def __init__(self, has_smaller: bool) -> None:
        self.smaller_keys = self.smaller_values = None
        if has_smaller:
            self.smaller_keys = nn.weight(
                "", kind=Convolution("attn.key.down_conv", "attn.key.norm")
            )
            self.smaller_values = nn.weight(
                "", kind=Convolution("attn.value.down_conv", "attn.value.norm")
            )
        self.q = nn.weight("", kind=Convolution("attn.query.proj"))
        self.k = nn.weight("", kind=Convolution("attn.key.proj"))
        self.v = nn.weight("", kind=Convolution("attn.value.proj"))
        self.out = nn.weight("", kind=Convolution("attn.output.proj"))

    def __call__(self, x: Tensor, stride: int) -> Tensor:
        """Map a map to one of the same shape."""
        y = x.rms_norm(self.norm, eps=EPS)
        keys = y if self.smaller_keys is None else self.smaller_keys(y, 2)
        values = y if self.smaller_values is None else self.smaller_values(y, 2)
        k, v = self.k(keys), self.v(values)
        head = k.shape[-1]
        q = self.q(y)
        made = q.reshape(1, -1, q.shape[-1] // head, head).scaled_dot_product_attention(
            k.reshape(1, -1, 1, head), v.reshape(1, -1, 1, v.shape[-1]), scale=head**-0.5
        )
        made = made.contiguous().reshape(*x.shape[:3], -1)
        return _add_if_same(_scale(self.out(made), self.scale), x)


def _scale(x: Tensor, by: Tensor | None) -> Tensor:
    return x if by is None else x.mul(by.reshape(x.shape[-1]))


def _add_if_same(x: Tensor, before: Tensor) -> Tensor:
    return x.add(before) if x.shape == before.shape else x


Block = EdgeBlock | InvertedBlock | MobileAttention


@projector("gemma3nv")
class Gemma3nVision(Tower):
    """MobileNet-v5, and a matrix between two norms."""

    placeholder = "<image_soft_token>"

    stem: Convolution
    stem_bias: Tensor | None = nn.weight("v.conv_stem.conv.bias")
    stem_norm: Tensor = nn.weight("v.conv_stem.bn.weight")
    widen: Convolution
    narrow: Convolution
    last_norm: Tensor = nn.weight("v.msfa.norm.weight")
    soft_norm: Tensor = nn.weight("mm.soft_emb_norm.weight")
    projection: nn.Linear = nn.weight("mm.input_projection", "cols", "width")
    # Embeddings of the tokens that the language model has none for; <end_of_image> is the first.
    tokens: Tensor | None = nn.weight("mm.embedding.weight")
    token_norm: Tensor | None = nn.weight("mm.hard_emb_norm.weight")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        self.cols = keys.uint("vision.projection_dim", at_least=1)
        self.width = keys.uint("vision.embedding_length", at_least=1)
        # Five strides of 2, and the average of the map before the last.
        self.size = keys.uint("vision.image_size", at_least=16 * SIDE)
        self.stem = nn.weight("", kind=Convolution("v.conv_stem.conv"))
        own = "v.msfa.ffn."
        self.widen = nn.weight("", kind=Convolution(f"{own}pw_exp.conv", f"{own}pw_exp.bn"))
        self.narrow = nn.weight("", kind=Convolution(f"{own}pw_proj.conv", f"{own}pw_proj.bn"))
        super().__init__(backend)
        if self.size % (16 * SIDE):
            raise self.fail(
                f"vision.image_size is {self.size}, needs a multiple of {16 * SIDE} pixels"
            )
        self.stages = [self._stage(number) for number in range(STAGES)]

    def _stage(self, stage: int) -> list[Block]:
        """Make and fill the blocks of a stage."""
        names = self.backend.file.tensors
        found = (_BLOCK.match(name) for name in names)
        numbers = {int(each[2]) for each in found if each is not None and int(each[1]) == stage}
        if not numbers or numbers != set(range(len(numbers))):
            raise self.fail(f"tensors v.blk.{stage}.0, v.blk.{stage}.1, … are missing")
        blocks: list[Block] = []
        for number in sorted(numbers):
            prefix = f"v.blk.{stage}.{number}."

            def has(name: str, prefix: str = prefix) -> bool:
                return f"{prefix}{name}.weight" in names

            block: Block
            if has("conv_exp"):
                block = EdgeBlock()
            elif has("attn.query.proj"):
                block = MobileAttention(has("attn.key.down_conv"))
            else:
                block = InvertedBlock(has("dw_start.conv"), has("dw_mid.conv"))
            self.fill(block, prefix)
            blocks.append(block)
        return blocks

    def prepare(self, source: NDArray[Any]) -> Media:
        """Resize a picture to a square, without keeping proportions."""
        values = scale_unit(resize(source, self.size, self.size, Filter.BILINEAR))
        has_end = self.tokens is not None and self.token_norm is not None
        after = "\n\n" if has_end else "<end_of_image>\n\n"
        rows = Rows(SIDE**2 + has_end)
        return make_media({"pixels": values[None]}, ["\n\n<start_of_image>", rows, after])

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the rows of the map, line by line, and that of <end_of_image>."""
        x = self.stem(inputs["pixels"], 2)
        if self.stem_bias is not None:
            x = x.add(self.stem_bias.reshape(x.shape[-1]))
        x = x.rms_norm(self.stem_norm, eps=EPS).gelu()
        maps: list[Tensor] = []
        for blocks in self.stages:
            for number, block in enumerate(blocks):
                x = block(x, 1 if number else 2)
            maps.append(x)
        x = self.narrow(self.widen(self._join(maps[-2], maps[-1])).gelu())
        x = self._average(x).rms_norm(self.last_norm, eps=EPS)
        x = x.scale(factor=self.width**0.5).rms_norm(self.soft_norm, eps=EPS)
        if self.tokens is not None and self.token_norm is not None:
            end = self.tokens.rows(context.from_numpy(np.zeros(1, np.int32)))
            x = x.concat(end.rms_norm(self.token_norm, eps=EPS), axis=0)
        return self.projection(x).rms_norm(None, eps=EPS)

    @staticmethod
    def _join(larger: Tensor, smaller: Tensor) -> Tensor:
        """Concatenate the channels of two maps; each value of the smaller is repeated."""
        _, height, width, channels = smaller.shape
        factor = larger.shape[1] // height
        lines = smaller.reshape(height, 1, width, 1, channels)
        for axis in (1, 3):
            whole = lines
            for _ in range(factor - 1):
                whole = whole.concat(lines, axis=axis)
            lines = whole
        return larger.concat(lines.reshape(*larger.shape[:3], channels), axis=3)

    def _average(self, x: Tensor) -> Tensor:
        """Return the means of squares of a map: (SIDE², width)."""
        factor = x.shape[1] // SIDE
        parts = x.reshape(SIDE, factor, SIDE, factor, self.width).permute(0, 2, 4, 1, 3)
        squares = parts.contiguous().reshape(SIDE**2, self.width, factor**2)
        return squares.mean(-1).reshape(SIDE**2, self.width)
