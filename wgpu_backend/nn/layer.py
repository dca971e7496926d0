"""The layers of decoders: a token mixer and a feed-forward network, with norms and residuals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.kvcache.layers import LayerCache
from wgpu_backend.nn.layer_config import LayerConfig
from wgpu_backend.nn.layers import Norm
from wgpu_backend.nn.module import Module

Names = tuple[str | None, str | None]


# A part of a layer: takes its input and a residual to add, or None.
Part = Callable[..., Tensor]


class Mixer(Protocol):
    """A part that lets tokens see each other: attention, or a recurrent network."""

    @property
    def cached(self) -> LayerCache:
        """Return the cache entry of the layer."""
        ...

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Mix (tokens, width); the result goes to `project`, row by row."""
        ...

    def project(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map rows of the result of `forward` to (rows, width), with the residual added."""
        ...


class FeedForward(Protocol):
    """A part that changes each token independently."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map (rows, width) to (rows, width), with the residual added."""
        ...


class DecoderLayer(Module, ABC):
    """A layer of a decoder, with a token mixer."""

    mixer: Mixer

    @property
    def cached(self) -> LayerCache:
        """Return the cache entries of the layer: by default those of its mixer."""
        return self.mixer.cached

    @abstractmethod
    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Map (tokens, width) to the same shape; the last layer returns the output rows only."""


class Layer(DecoderLayer):
    """A pre-norm layer: ``x += mixer(norm(x))``, then ``x += mlp(norm(x))``; norms may be moved.

    Parameters
    ----------
    before : pair of str or None
        Names of the norms before mixer and feed-forward; None where there is none.
    after : pair of str or None
        Names of norms after them, before the residual is added.
    residual_scale : float
        Factor of the two terms that are added to the residual.
    """

    mixer_norm: Norm | None = None
    mlp_norm: Norm | None = None
    mixer_post_norm: Norm | None = None
    mlp_post_norm: Norm | None = None

    def __init__(
        self,
        config: LayerConfig,
        mixer: Mixer,
        mlp: FeedForward,
        *,
        before: Names = ("attn_norm", "ffn_norm"),
        after: Names = (None, None),
        residual_scale: float = 1.0,
    ) -> None:
        self.width, self.last, self.residual_scale = config.width, config.last, residual_scale
        self.mixer, self.mlp = mixer, mlp
        self.mixer_norm, self.mlp_norm = map(config.norm, before)
        self.mixer_post_norm, self.mlp_post_norm = map(config.norm, after)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Map (tokens, width) to the same shape; the last layer keeps the output rows only."""
        y = self.mixer.forward(_normalise(self.mixer_norm, x), batch)
        # No later layer mixes tokens, so only the output rows are needed from here on.
        if self.last:
            x, y = batch.select_outputs(x), batch.select_outputs(y)
        x = self._apply(self.mixer.project, y, x, self.mixer_post_norm)
        return self._apply(self.mlp.forward, _normalise(self.mlp_norm, x), x, self.mlp_post_norm)

    def _apply(self, part: Part, y: Tensor, x: Tensor, norm: Norm | None) -> Tensor:
        """Apply a part to `y` and add the residual `x`, in the part's own kernel if possible."""
        # Without a norm or factor in between, the part's last product adds the residual.
        if norm is None and self.residual_scale == 1:
            return part(y, x)
        y = _normalise(norm, part(y))
        return x.add(y if self.residual_scale == 1 else y.scale(factor=self.residual_scale))


class PostNormLayer(DecoderLayer):
    """``x = norm(x + mixer(x))``, then ``x = norm(x + mlp(x))`` (Vaswani et al. 2017, §3.1).

    Parameters
    ----------
    norms : pair of str
        Names of the norms.
    """

    mixer_norm: Norm
    mlp_norm: Norm

    def __init__(
        self,
        config: LayerConfig,
        mixer: Mixer,
        mlp: FeedForward,
        *,
        norms: tuple[str, str] = ("attn_output_norm", "layer_output_norm"),
    ) -> None:
        self.width, self.last = config.width, config.last
        self.mixer, self.mlp = mixer, mlp
        self.mixer_norm, self.mlp_norm = map(config.norm, norms)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Map (tokens, width) to the same shape; the last layer keeps the output rows only."""
        y = self.mixer.forward(x, batch)
        # No later layer mixes tokens, so only the output rows are needed from here on.
        if self.last:
            x, y = batch.select_outputs(x), batch.select_outputs(y)
        x = self.mixer_norm(self.mixer.project(y, x))
        return self.mlp_norm(self.mlp.forward(x, x))


class ParallelLayer(DecoderLayer):
    """``x + mixer(norm(x)) + mlp(norm(x))``, as in GPT-J and PaLM (Chowdhery 2022, §2).

    Parameters
    ----------
    norm : str
        Name of the norm before both.
    mlp_norm : str or None
        Name of a separate norm before the feed-forward network; None for the shared one.
    """

    mixer_norm: Norm
    mlp_norm: Norm | None = None

    def __init__(
        self,
        config: LayerConfig,
        mixer: Mixer,
        mlp: FeedForward,
        *,
        norm: str = "attn_norm",
        mlp_norm: str | None = None,
    ) -> None:
        self.width, self.last = config.width, config.last
        self.mixer, self.mlp = mixer, mlp
        self.mixer_norm, self.mlp_norm = config.norm(norm), config.norm(mlp_norm)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Map (tokens, width) to the same shape; the last layer keeps the output rows only."""
        normed = self.mixer_norm(x)
        y = self.mixer.forward(normed, batch)
        # No later layer mixes tokens, so only the output rows are needed from here on.
        if self.last:
            x, y, normed = (
                batch.select_outputs(x),
                batch.select_outputs(y),
                batch.select_outputs(normed),
            )
        normed = normed if self.mlp_norm is None else self.mlp_norm(x)
        # Each product adds a residual in its own kernel: attention's takes `x`, and the
        # feed-forward network's takes that sum.
        return self.mlp.forward(normed, self.mixer.project(y, x))


def _normalise(norm: Norm | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


class MixerLayer(DecoderLayer):
    """``x += mixer(norm(x))``, and no feed-forward."""

    norm: Norm

    def __init__(self, config: LayerConfig, mixer: Mixer) -> None:
        self.width, self.last, self.mixer = config.width, config.last, mixer
        self.norm = config.norm("attn_norm")

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Map (tokens, width) to the same shape; the last layer returns the output rows only."""
        y = self.mixer.forward(self.norm(x), batch)
        if self.last:
            x, y = batch.select_outputs(x), batch.select_outputs(y)
        return self.mixer.project(y, x)


class FeedForwardLayer(DecoderLayer):
    """``x += mlp(norm(x))``, without a mixer or a cache; `norm` is the name of its weight."""

    norm: Norm

    def __init__(self, config: LayerConfig, mlp: FeedForward, *, norm: str = "attn_norm") -> None:
        self.width, self.last, self.mlp = config.width, config.last, mlp
        self.norm = config.norm(norm)

    @property
    def cached(self) -> None:
        """Return None: the layer caches nothing."""
        return None

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Map (tokens, width) to the same shape; the last layer returns the output rows only."""
        if self.last:
            x = batch.select_outputs(x)
        return self.mlp.forward(self.norm(x), x)
