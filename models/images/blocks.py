"""Parts that diffusion networks share: residual blocks, attention, feed-forward, timesteps.

Images are (n, height, width, channels). Ho et al. 2020, "Denoising Diffusion Probabilistic
Models", appendix B; Rombach et al. 2022, "High-Resolution Image Synthesis with Latent Diffusion
Models", appendix E.2.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.array.nn.convolution import Paddings


class ResnetBlock(nn.Module):
    """Two convolutions, each after a norm, plus the residual; the timestep is added between them.

    Parameters
    ----------
    inputs, outputs : int
        Channels.
    groups : int
        Groups of the norms.
    eps : float
        Epsilon of the norms.
    times : int
        Width of the timestep's vector; 0 if there is none.
    """

    def __init__(
        self, inputs: int, outputs: int, *, groups: int, eps: float, times: int = 0
    ) -> None:
        self.norm1 = nn.GroupNorm(groups, inputs, eps, pytorch_compatible=True)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time_emb_proj = nn.Linear(times, outputs) if times else None
        self.norm2 = nn.GroupNorm(groups, outputs, eps, pytorch_compatible=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None

    def __call__(self, x: wx.Array, time: wx.Array | None = None) -> wx.Array:
        """Map (n, height, width, inputs) and (n, times) to (n, height, width, outputs)."""
        y = self.conv1(nn.silu(self.norm1(x)))
        if self.time_emb_proj is not None and time is not None:
            y = y + self.time_emb_proj(nn.silu(time))[:, None, None]
        y = self.conv2(nn.silu(self.norm2(y)))
        return y + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Downsample(nn.Module):
    """A convolution of stride 2."""

    def __init__(self, channels: int, padding: Paddings = 1) -> None:
        self.conv = nn.Conv2d(channels, channels, 3, stride=2, padding=padding)

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, height, width, channels) to half the height and width."""
        return self.conv(x)


class Upsample(nn.Module):
    """An enlargement by nearest neighbour, and a convolution."""

    def __init__(self, channels: int) -> None:
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def __call__(self, x: wx.Array, size: Sequence[int] | None = None) -> wx.Array:
        """Map (n, height, width, channels) to twice the size, or to another."""
        height, width = size or (2 * x.shape[1], 2 * x.shape[2])
        return self.conv(nn.resized(x, height, width))


class Attention(nn.Module):
    """Attention of tokens to themselves, or to those of a text.

    Parameters
    ----------
    context : int or None
        Width of the text's tokens; None for self-attention.
    bias : bool
        Whether the projections of queries, keys and values have biases.
    """

    def __init__(
        self, width: int, heads: int, context: int | None = None, bias: bool = False
    ) -> None:
        self.to_q = nn.Linear(width, width, bias)
        self.to_k = nn.Linear(context or width, width, bias)
        self.to_v = nn.Linear(context or width, width, bias)
        self.to_out = [nn.Linear(width, width)]
        self._heads = heads

    def __call__(self, x: wx.Array, context: wx.Array | None = None) -> wx.Array:
        """Map (n, tokens, width) and (n, keys, context) to (n, tokens, width)."""
        seen = x if context is None else context
        y = nn.attend(self.to_q(x), self.to_k(seen), self.to_v(seen), heads=self._heads)
        return self.to_out[0](y)


class GEGLU(nn.Module):
    """A linear layer of which one half is gated by the other (Shazeer 2020)."""

    def __init__(self, width: int, inner: int) -> None:
        self.proj = nn.Linear(width, 2 * inner)

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (..., width) to (..., inner)."""
        values, gate = self.proj(x).split(2, axis=-1)
        return values * nn.gelu(gate)


class Activated(nn.Module):
    """A linear layer with an activation."""

    def __init__(self, width: int, inner: int, activation: str) -> None:
        self.proj = nn.Linear(width, inner)
        self._activation = nn.activation(activation)

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (..., width) to (..., inner)."""
        return self._activation(self.proj(x))


class FeedForward(nn.Module):
    """A feed-forward network, four times as wide inside.

    Parameters
    ----------
    activation : str
        ``geglu``, or a name of `nn.activation`.
    """

    def __init__(self, width: int, activation: str = "geglu") -> None:
        inner = 4 * width
        first = (
            GEGLU(width, inner) if activation == "geglu" else Activated(width, inner, activation)
        )
        self.net = [first, nn.Identity(), nn.Linear(inner, width)]

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (..., width) to the same shape."""
        for part in self.net:
            x = part(x)
        return x


class TimeEmbedding(nn.Module):
    """Two linear layers with SiLU between them."""

    def __init__(self, inputs: int, width: int) -> None:
        self.linear_1 = nn.Linear(inputs, width)
        self.linear_2 = nn.Linear(width, width)

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, inputs) to (n, width)."""
        return self.linear_2(nn.silu(self.linear_1(x)))
