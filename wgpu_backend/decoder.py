"""Decoder: what language models of one stack of layers have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar

from wgpu_backend import nn
from wgpu_backend.batch import Batch
from wgpu_backend.config import Config
from wgpu_backend.kvcache.layers import LayerCache
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.model import Model
from wgpu_backend.nn.rope import Factors


class Decoder(Model):
    """Embedding of tokens, layers, a norm, and scores of the vocabulary.

    A subclass says in `layer` what a layer is made of; the rest is what most models have, and
    methods that a few replace: `embed`, `logits`, `make_rope`.

    Parameters
    ----------
    backend : Backend

    Attributes
    ----------
    norm : type of Norm
        Kind of every norm.
    output_norm_name : str
        Of the last norm's weight.
    rope_interleaved : bool
        Whether neighbours are rotated with each other; otherwise halves of a head.
    embedding_scale, logit_scale : float
        Factors; 1 where a model does not set them.
    logit_softcap : float
        Bound of scores; 0 for none. ``final_logit_softcapping`` of the file.
    """

    norm: ClassVar[type[nn.Norm]] = nn.RMSNorm
    output_norm_name: ClassVar[str] = "output_norm"
    rope_interleaved: ClassVar[bool] = False
    fused_weights = (
        ("attn_q", "attn_k", "attn_v"),
        ("ffn_gate", "ffn_up"),
        ("ffn_gate_shexp", "ffn_up_shexp"),
    )

    token_embedding: nn.Embedding = nn.weight("token_embd", "vocabulary", "width")
    position_embedding: nn.Embedding | None = nn.weight("position_embd", "positions", "width")
    output: nn.Linear = nn.weight("output", "vocabulary", "width", alt="token_embd")
    output_norm: nn.Norm
    rope_factors: Tensor | None = nn.weight("rope_freqs.weight")
    rope_long: Tensor | None = nn.weight("rope_factors_long.weight")
    rope_short: Tensor | None = nn.weight("rope_factors_short.weight")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        self.width = keys.uint("embedding_length", at_least=1)
        self.positions = keys.uint("context_length", 0) or None
        self.vocabulary = backend.require("token_embd.weight").shape[0]
        self.output_norm = nn.weight(
            self.output_norm_name, "width", kind=self.make_norm(keys), needed=True
        )
        super().__init__(backend)
        self.embedding_scale = self.logit_scale = 1.0
        self.logit_softcap = keys.float("final_logit_softcapping", 0.0)
        count = keys.uint("block_count", at_least=1) - keys.uint("nextn_predict_layers", 0)
        self._configs = self._layer_configs(count)
        self.layers = [self.layer(config) for config in self._configs]
        for i, layer in enumerate(self.layers):
            self.fill(layer, f"blk.{i}.")
        self.require_all_used(count)

    def _layer_configs(self, count: int) -> list[nn.LayerConfig]:
        """What the file says of each layer, once it has as many as its key says."""
        shapes = {name: info.shape for name, info in self.backend.file.tensors.items()}
        found = {name.split(".")[1] for name in shapes if name.startswith("blk.")}
        block_count = self.config.uint("block_count")
        if len(found) != block_count:
            raise self.fail(f"it has {len(found)} layers, block_count says {block_count}")
        # Of the class: layers that know their model would keep it alive, and its device memory.
        make_norm = partial(type(self).make_norm, self.config)
        return [nn.LayerConfig(self.config, shapes, i, count, make_norm) for i in range(count)]

    @classmethod
    def make_norm(cls, config: Config) -> nn.Norm:
        """Norm of the model's kind, with the file's epsilon."""
        return cls.norm.from_config(config)

    @cached_property
    def rope(self) -> nn.Rotary:
        """Rotation of queries and keys; made for the first layer that asks for it."""
        return self.make_rope()

    @abstractmethod
    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Make a layer of blocks that know their sizes; its weights come later."""

    def make_rope(self, **changes: Any) -> nn.Rotary:  # noqa: ANN401
        """Rotation of queries and keys, by the keys and factors of the file.

        Parameters
        ----------
        **changes
            Options in place of the file's.

        Raises
        ------
        ModelError
            LongRoPE has no factors.
        """
        heads = self._configs[0].uint("attention.head_count", at_least=1)
        head = self.config.uint("attention.key_length", self.width // heads)
        options = nn.RopeOptions.from_config(self.config, head, interleaved=self.rope_interleaved)
        options = replace(options, **changes)
        both = self.rope_long is not None and self.rope_short is not None
        if not (options.by_context or both):
            return nn.Rotary(options, self._read(self.rope_factors))
        if self.rope_long is None or self.rope_short is None:
            raise self.fail(
                "rope.scaling.type is 'longrope', needs the tensors rope_factors_long.weight and "
                "rope_factors_short.weight"
            )
        return nn.Rotary(options, self._read(self.rope_short), self._read(self.rope_long))

    @cached_property
    def local_rope(self) -> nn.Rotary:
        """Rotation in layers with a window, of a base of its own and not stretched."""
        own = self.rope.options.base
        base = self.config.float("rope.freq_base_swa", own)
        dims = self.config.uint("rope.dimension_count_swa", self.rope.options.dims)
        return self.make_rope(base=base, dims=dims, scale=1.0, extrapolation=0.0, attention=1.0)

    def _read(self, factors: Tensor | None) -> Factors | None:
        return None if factors is None else self.backend.executor.read(factors)

    def fit_context(self, positions: int) -> None:
        """Choose LongRoPE's factors for sequences of so many positions."""
        self.rope.fit_context(positions)

    def context_limit(self) -> int | None:
        """Positions that were learned, where they were."""
        table = self.position_embedding
        return None if table is None else table.weight.shape[0]

    def cache_layers(self) -> Sequence[LayerCache]:
        """What each layer keeps."""
        return [layer.cached for layer in self.layers]

    def hidden(self, batch: Batch) -> Tensor:
        """States of the wanted rows after the last norm."""
        x = self.embed(batch)
        for layer in self.layers:
            x = layer.forward(x, batch)
        return self.output_norm(x)

    def embed(self, batch: Batch) -> Tensor:
        """States of the tokens before the first layer: (tokens, width)."""
        x = self.token_embedding(batch.tokens)
        if self.embedding_scale != 1:
            x = x.scale(factor=self.embedding_scale)
        if self.position_embedding is None:
            return x
        positions = batch.positions.maximum(batch.context.from_ints([0]))  # padding stands at -1
        return x.add(self.position_embedding(positions))

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every vocabulary entry."""
        y = self.output.precise(hidden)
        if self.logit_scale != 1:
            y = y.scale(factor=self.logit_scale)
        if not self.logit_softcap:
            return y
        return y.scale(factor=1 / self.logit_softcap).tanh().scale(factor=self.logit_softcap)
