"""Gemma 4's tower for sound: Zhang et al. 2023, "Google USM", §2.1, and Gemma Team 2026, "Gemma 4".

A conformer (Gulati et al. 2020, "Conformer", §2): two convolutions make one state of four frames;
each layer has half a feed-forward network, attention to the latest states, a convolution over time
and the other half. There is a row for every 40 ms.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wgpu_backend import nn
from wgpu_backend.errors import MediaError
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.audio.mel import RATE, log_magnitudes
from wgpu_backend.nn.tower import Media, Rows, Tower, make_media, projector
from wgpu_backend.nn.vision.blocks import ClippedLinear, LayerSizes

# Constants of the published code, for which files have no keys.
EPS = 1e-6
SEEN = 12  # states that one attends to, itself included
SOFTCAP = 50.0
SECONDS = 30
TAPS = 5


class Half(nn.Module):
    """Half of a feed-forward network (Gulati et al. 2020, §2.3), with norms before and after it."""

    def __init__(self, width: int, inner: int, suffix: str) -> None:
        self.width, self.inner = width, inner
        self.norm: nn.RMSNorm = nn.weight(f"ffn_norm{suffix}", "width", kind=nn.RMSNorm(EPS))
        self.up: ClippedLinear = nn.weight(f"ffn_up{suffix}", "inner", "width", kind=ClippedLinear)
        self.down: ClippedLinear = nn.weight(
            f"ffn_down{suffix}", "width", "inner", kind=ClippedLinear
        )
        self.after: nn.RMSNorm = nn.weight(f"ffn_post_norm{suffix}", "width", kind=nn.RMSNorm(EPS))

    def __call__(self, x: Tensor) -> Tensor:
        """Map (states, width) to the same shape, with the residual."""
        return x.add(self.after(self.down(self.up(self.norm(x)).silu())).scale(factor=0.5))


@dataclass(frozen=True, slots=True)
class Near:
    """The states that each state attends to: itself and those before it.

    Parameters
    ----------
    waves : (span, width)
        Position embeddings of the distances 0, 1, …
    latest : (states · span,), i32
        The latest states of each.
    seen : (states, 1, 1, span), bool
        Whether there is such a state.
    zero : (1,)
    """

    waves: Tensor
    latest: Tensor
    seen: Tensor
    zero: Tensor

    @classmethod
    def find(cls, context: Context, count: int, span: int, width: int) -> Near:
        """Return the latest `span` of `count` states."""
        places = np.arange(count, dtype=np.int32)[:, None] - np.arange(span, dtype=np.int32)
        return cls(
            context.from_numpy(_make_waves(span, width)),
            context.from_numpy(np.maximum(places, 0).reshape(-1)),
            context.from_numpy((places >= 0).reshape(count, 1, 1, span)),
            context.zeros(1),
        )


def _make_waves(span: int, width: int) -> NDArray[np.float32]:
    """Return sines, then cosines, of the distances 0, 1, …: (span, width)."""
    count = width // 2
    step = np.float32(-math.log(10000) / max(count - 1, 1))
    angles = np.arange(span, dtype=np.float32)[:, None] * np.exp(
        np.arange(count, dtype=np.float32) * step
    )
    return np.concatenate([np.sin(angles), np.cos(angles)], 1)


class LocalAttention(nn.Module):
    """Attention to the latest states, with an embedding of the distance in each key.

    Attributes
    ----------
    key_factor : float
        Factor of keys without the distances.
    """

    key_factor: ClassVar[float] = math.log(1 + math.e) / math.log(2)

    q: ClippedLinear = nn.weight("attn_q", "width", "width")
    k: ClippedLinear = nn.weight("attn_k", "width", "width")
    v: ClippedLinear = nn.weight("attn_v", "width", "width")
    out: ClippedLinear = nn.weight("attn_out", "width", "width")
    distance: nn.Linear = nn.weight("attn_k_rel", "width", "width")
    scales: Tensor = nn.weight("per_dim_scale.weight", "head")

    def __init__(self, sizes: LayerSizes) -> None:
        self.width, self.heads, self.head = sizes.width, sizes.heads, sizes.head

    def __call__(self, x: Tensor, near: Near) -> Tensor:
        """Map (states, width) to the same shape, without the residual."""
        count, span = x.shape[0], near.waves.shape[0]
        q = self.q(x).reshape(count, 1, self.heads, self.head).mul(self.get_scales(near.zero))
        q = q.scale(factor=self.head**-0.5 / math.log(2))
        k = self.k(x).scale(factor=self.key_factor)
        shape = (count, span, self.heads, self.head)
        keys = k.rows(near.latest).reshape(count, span, self.width).add(self.distance(near.waves))
        y = q.scaled_dot_product_attention(
            keys.reshape(*shape),
            self.v(x).rows(near.latest).reshape(*shape),
            near.seen,
            scale=1.0,
            softcap=SOFTCAP,
        )
        return self.out(y.contiguous().reshape(count, self.width))

    def get_scales(self, zero: Tensor) -> Tensor:
        """Return the factors of a query's columns: (head,)."""
        return self.scales


class TimeConvolution(nn.Module):
    """A gated unit and a convolution of each channel over the latest states (§2.2)."""

    norm: nn.RMSNorm
    start: ClippedLinear = nn.weight("conv_pw1", "gated", "width")
    taps: Tensor = nn.weight("conv_dw.weight", "width", TAPS)
    after: nn.RMSNorm
    end: ClippedLinear = nn.weight("conv_pw2", "width", "width")

    def __init__(self, width: int) -> None:
        self.width, self.gated = width, 2 * width
        # llama.cpp's converter swaps the two names.
        self.norm = nn.weight("conv_norm", "width", kind=nn.RMSNorm(EPS))
        self.after = nn.weight("norm_conv", "width", kind=nn.RMSNorm(EPS))

    def __call__(self, x: Tensor) -> Tensor:
        """Map (states, width) to the same shape, with the residual."""
        both = self.start(self.norm(x))
        value, gate = (
            both.slice(-1, i * self.width, (i + 1) * self.width).contiguous() for i in range(2)
        )
        y = value.mul(gate.sigmoid()).reshape(1, -1, self.width)
        taps = self.taps.reshape(self.width, TAPS, 1)
        y = y.conv1d(taps, 1, (TAPS - 1, 0), 1, self.width).reshape(-1, self.width)
        return x.add(self.end(self.after(y).silu()))


class Layer(nn.Module):
    """A conformer's layer.

    Parameters
    ----------
    attention : LocalAttention
    convolution : TimeConvolution
    norms : three str
        Names of the norms before and after attention, and of the layer's last.
    """

    before: nn.RMSNorm
    after: nn.RMSNorm
    last: nn.RMSNorm

    def __init__(
        self,
        sizes: LayerSizes,
        attention: LocalAttention,
        convolution: TimeConvolution,
        norms: tuple[str, str, str] = ("attn_pre_norm", "attn_post_norm", "ln2"),
    ) -> None:
        self.width = sizes.width
        self.first = nn.weight("", kind=Half(sizes.width, sizes.inner, ""))
        self.attention = nn.weight("", kind=attention)
        self.convolution = nn.weight("", kind=convolution)
        self.second = nn.weight("", kind=Half(sizes.width, sizes.inner, "_1"))
        self.before, self.after, self.last = (
            nn.weight(name, "width", kind=nn.RMSNorm(EPS), needed=True) for name in norms
        )

    def __call__(self, x: Tensor, near: Near) -> Tensor:
        """Map (states, width) to the same shape."""
        x = self.first(x)
        x = x.add(self.after(self.attention(self.before(x), near)))
        return self.last(self.second(self.convolution(x)))


class Conformer(Tower):
    """A base class of towers with two convolutions over a spectrogram and a conformer's layers.

    Attributes
    ----------
    seen : int
        States that a state attends to, itself included.
    shortest : float
        Seconds of the shortest sound that has a frame.
    project : Linear
        Matrix from the values of all bands after the convolutions to a state.
    """

    modality = "audio"
    max_seconds = SECONDS
    seen: ClassVar[int] = SEEN
    shortest: ClassVar[float]
    project: nn.Linear

    first: Tensor = nn.weight("a.conv1d.0.weight")
    second: Tensor = nn.weight("a.conv1d.1.weight")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        self.sizes = LayerSizes.from_config(keys, "audio", activation="silu", eps=EPS)
        self.width = self.sizes.width
        self.bands = keys.uint("audio.num_mel_bins", 128, at_least=4)
        self.cols = keys.uint("audio.projection_dim", at_least=1)
        super().__init__(backend)
        for number, kernel in enumerate((self.first, self.second)):
            if len(kernel.shape) != 4 or kernel.shape[2:] != (3, 3):
                raise self.fail(
                    f"tensor a.conv1d.{number}.weight is {kernel.shape}, needs (outputs, inputs, "
                    "3, 3)"
                )
        self.layers = self.fill_layers(self.make_layer, self.sizes.count, "a.blk.")

    @abstractmethod
    def make_layer(self) -> Layer:
        """Return a layer without weights."""

    def require_length(self, source: NDArray[Any], frames: NDArray[np.float32]) -> None:
        """Raise if a sound is too long, or has no frames in its spectrogram."""
        if len(source) > SECONDS * RATE or not len(frames):
            raise MediaError(
                f"audio: {len(source) / RATE:.3f} seconds, the model takes {self.shortest} to "
                f"{SECONDS}"
            )

    def encode_states(self, context: Context, x: Tensor) -> Tensor:
        """Map what the convolutions made, (1, states, bands, channels), to (states, width)."""
        count = x.shape[1]
        x = self.project(x.contiguous().reshape(count, -1))
        near = Near.find(context, count, self.seen, self.width)
        for layer in self.layers:
            x = layer(x, near)
        return x


@projector("gemma4a")
class Gemma4Audio(Conformer):
    """A conformer, and a matrix."""

    placeholder = "<|audio|>"
    shortest = 0.02

    first_norm: Tensor = nn.weight("a.conv1d.0.norm.weight")
    second_norm: Tensor = nn.weight("a.conv1d.1.norm.weight")
    project: nn.Linear = nn.weight("a.input_projection")
    output: nn.Linear = nn.weight("a.pre_encode.out")
    last: nn.Linear = nn.weight("mm.a.input_projection")

    def make_layer(self) -> Layer:
        """Return a layer without weights."""
        return Layer(self.sizes, LocalAttention(self.sizes), TimeConvolution(self.width))

    def prepare(self, source: NDArray[Any]) -> Media:
        """Make the spectrogram of a sound of at most 30 seconds."""
        frames = log_magnitudes(source, self.bands)
        self.require_length(source, frames)
        rows = Rows(-(-len(frames) // 4))
        return make_media({"frames": frames}, ["<|audio>", rows, "<audio|>"])

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for every 40 ms."""
        x = inputs["frames"].reshape(1, -1, self.bands, 1)
        for kernel, norm in ((self.first, self.first_norm), (self.second, self.second_norm)):
            x = x.conv2d(kernel.permute(0, 2, 3, 1), (2, 2), (1, 1))
            x = x.layer_norm(norm, None, eps=EPS).relu()
        x = self.encode_states(context, x)
        return self.last(self.output(x).rms_norm(None, eps=EPS))
