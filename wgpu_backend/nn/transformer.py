"""The `Transformer` base class: everything that models with one sequence of layers share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar

from wgpu_backend import nn
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.kvcache.layers import LayerCache, forbid_shift
from wgpu_backend.nn.mlp import activated, require_activation
from wgpu_backend.nn.model import Model
from wgpu_backend.nn.module import old_names
from wgpu_backend.nn.rope import Factors
from wgpu_backend.ops.attention.options import POSITION_AXES, Sectioning

EMBEDDINGS = "embeddings"
_DENSE = ("dense_2.weight", "dense_3.weight")


@old_names(normed="normalise", steered="add_direction", with_given="insert_embeddings")
class Transformer(Model):
    """A model of token embeddings, a sequence of layers, and a norm.

    A subclass builds a layer in `layer`; a few also override `embed` or `make_rope`. `Decoder`
    adds the logits of the next token, `Encoder` lets tokens attend to all of their text. Dense
    modules, as in sentence-transformers, map a pooled state, where the file has them.

    Attributes
    ----------
    norm : type of Norm
        Kind of every norm.
    output_norm_name : str or None
        Name of the last norm's weight; None where no norm follows the layers.
    prefix : str
        Prefix of the names of the layers' weights.
    elsewhere : tuple of str
        Prefixes of weights that belong to another model in the file.
    rope_interleaved : bool
        Whether RoPE pairs adjacent values; otherwise the halves of a head.
    sectioning : str or None
        Assignment of ``rope.dimension_sections`` to pairs, see `RopeOptions`; None where a token
        has one position.
    local_base : float
        Default RoPE base of layers with a window; 0 for that of the other layers.
    embedding_scale : float
        Factor of embeddings; 1 by default.
    steerable : bool
        Whether `hidden` calls `add_direction`. A subclass that overrides `hidden` sets it.
    """

    norm: ClassVar[type[nn.Norm]] = nn.RMSNorm
    output_norm_name: ClassVar[str | None] = "output_norm"
    prefix: ClassVar[str] = ""
    elsewhere: ClassVar[tuple[str, ...]] = ()
    steerable = True
    rope_interleaved: ClassVar[bool] = False
    sectioning: ClassVar[Sectioning | None] = None
    local_base: ClassVar[float] = 0.0
    # The weights of a group are used together, and stored next to each other.
    fused_weights = (
        (
            *("attn_q", "attn_k", "attn_v", "attn_q_a", "attn_kv_a_mqa", "ssm_f_a", "ssm_g_a"),
            *("attn_qkv", "attn_gate", "ssm_ba", "ssm_beta", "ssm_alpha"),
        ),
        ("ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"),
        ("ffn_gate_inp", "ffn_gate_inp_shexp"),
        ("ffn_gate", "ffn_up"),
        ("ffn_gate_shexp", "ffn_up_shexp"),
        ("ffn_gate_exps", "ffn_up_exps"),
    )

    token_embedding: nn.Embedding = nn.weight("token_embd", "vocabulary", "width")
    position_embedding: nn.Embedding | None = nn.weight("position_embd", "positions", "width")
    output_norm: nn.Norm | None = None
    dense_2: nn.Linear | None = nn.weight("dense_2", "between", "pooled_width")
    dense_3: nn.Linear | None = nn.weight("dense_3", "vector_width", "between")
    rope_factors: Tensor | None = nn.weight("rope_freqs.weight")
    rope_long: Tensor | None = nn.weight("rope_factors_long.weight")
    rope_short: Tensor | None = nn.weight("rope_factors_short.weight")

    def __init_subclass__(cls) -> None:
        """Mark a class that overrides `hidden` as not steerable, unless it sets the flag."""
        super().__init_subclass__()
        if "hidden" in vars(cls) and "steerable" not in vars(cls):
            cls.steerable = False

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        self.width = keys.uint("embedding_length", at_least=1)
        self.positions = keys.uint("context_length", 0) or None
        self.vocabulary = backend.require("token_embd.weight").shape[0]
        self._dense_sizes(backend)
        # Before `super().__init__`, which fills the fields that are declared by then.
        if self.output_norm_name is not None:
            self.output_norm = nn.weight(
                self.output_norm_name, "width", kind=self.make_norm(keys), needed=True
            )
        super().__init__(backend)
        self.embedding_scale = 1.0
        # The last blocks predict tokens after the next one; logits do without them.
        count = self.block_count - keys.uint("nextn_predict_layers", 0)
        self._configs = self._layer_configs(count)
        self.layers = [self.layer(config) for config in self._configs]
        for i, layer in enumerate(self.layers):
            self.fill(layer, f"{self.prefix}blk.{i}.")
        self.require_all_used(count, self.elsewhere)

    def _dense_sizes(self, backend: Backend) -> None:
        """Read the widths and activations of the dense modules."""
        keys = backend.config
        # States pooled in several ways are concatenated, as in sentence-transformers.
        ways = keys.string("pooling", "").count("+") + 1
        self.pooled_width = keys.uint("dense_2_feat_in", ways * self.width)
        tensors = backend.file.tensors
        rows = [tensors[n].shape[0] if n in tensors else self.width for n in _DENSE]
        self.between = keys.uint("dense_2_feat_out", rows[0])
        self.vector_width = keys.uint("dense_3_feat_out", rows[1])
        self.dense_activations = [keys.string(f"dense_{n}_activation", "") for n in (2, 3)]
        for activation in self.dense_activations:
            # No name means no activation, and any known name stands in for it.
            require_activation(activation or "tanh")

    def vector(self, pooled: Tensor) -> Tensor:
        """Map pooled states through the dense modules, where the file has them."""
        modules = zip((self.dense_2, self.dense_3), self.dense_activations, strict=True)
        for dense, activation in modules:
            pooled = pooled if dense is None else dense(pooled)
            pooled = activated(activation, pooled) if dense and activation else pooled
        return pooled

    @property
    def block_count(self) -> int:
        """Return the number of layers in the file, including multi-token prediction."""
        return self.config.uint("block_count", at_least=1)

    def _layer_configs(self, count: int) -> list[nn.LayerConfig]:
        """Return the configuration of each layer; the file has to have `block_count` of them."""
        tensors = self.backend.file.tensors
        shapes = {name.removeprefix(self.prefix): info.shape for name, info in tensors.items()}
        found = {name.split(".")[1] for name in shapes if name.startswith("blk.")}
        if len(found) != self.block_count:
            raise self.fail(f"it has {len(found)} layers, block_count is {self.block_count}")
        # Bound to the class: layers that hold their model would keep its device memory alive.
        make_norm = partial(type(self).make_norm, self.config)
        return [nn.LayerConfig(self.config, shapes, i, count, make_norm) for i in range(count)]

    @classmethod
    def make_norm(cls, config: Config) -> nn.Norm:
        """Make a norm of the model's kind, with the file's epsilon."""
        return cls.norm.from_config(config)

    @cached_property
    def rope(self) -> nn.Rotary:
        """Return the rotation of queries and keys, made on first use."""
        return self.make_rope()

    @abstractmethod
    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Make a layer whose blocks have their sizes; weights are filled in later."""

    def make_rope(self, *, stretched: bool = True, **changes: Any) -> nn.Rotary:  # noqa: ANN401
        """Make the rotation of queries and keys from the file's keys and factors.

        Parameters
        ----------
        stretched : bool
            Whether to apply the file's scaling factors, if any.
        **changes
            Options that replace those of the file.

        Raises
        ------
        ModelError
            The file has LongRoPE without its factors.
        """
        heads = self._configs[0].uint("attention.head_count", at_least=1)
        head = self.config.uint("attention.key_length", self.width // heads)
        options = nn.RopeOptions.from_config(self.config, head, interleaved=self.rope_interleaved)
        options = replace(options, **self._sections(), **changes)
        if not stretched:
            return nn.Rotary(options)
        both = self.rope_long is not None and self.rope_short is not None
        if not (options.by_context or both):
            return nn.Rotary(options, self._read(self.rope_factors))
        if self.rope_long is None or self.rope_short is None:
            raise self.fail(
                "rope.scaling.type is 'longrope', needs the tensors rope_factors_long.weight and "
                "rope_factors_short.weight"
            )
        return nn.Rotary(options, self._read(self.rope_short), self._read(self.rope_long))

    def _sections(self) -> dict[str, Any]:
        """Return the options of M-RoPE: the sections of pairs that each axis rotates."""
        key = "rope.dimension_sections"
        if self.sectioning is None or key not in self.config:
            return {}
        sections = self.config.ints(key)
        if len(sections) not in (POSITION_AXES - 1, POSITION_AXES):
            raise self.fail(
                f"{key} has {len(sections)} values, needs {POSITION_AXES - 1} or {POSITION_AXES}"
            )
        # Three axes as published, or four in llama.cpp's files, of which text and images use three.
        padded = (*sections, *[0] * (POSITION_AXES - len(sections)))
        return {"sections": padded, "sectioning": self.sectioning}

    @cached_property
    def local_rope(self) -> nn.Rotary:
        """Return the rotation of layers with a window: its own base, without scaling."""
        own = self.local_base or self.rope.options.base
        base = self.config.float("rope.freq_base_swa", own)
        dims = self.config.uint("rope.dimension_count_swa", self.rope.options.dims)
        # Distances within a window are no longer than in training, so they need no scaling.
        plain = {"scale": 1.0, "extrapolation": 0.0, "attention": 1.0}
        return self.make_rope(stretched=False, base=base, dims=dims, **plain)

    def _read(self, factors: Tensor | None) -> Factors | None:
        return None if factors is None else self.backend.executor.read(factors)

    def fit_context(self, positions: int) -> None:
        """Choose LongRoPE's factors for sequences of `positions` positions."""
        self.rope.fit_context(positions)

    def context_limit(self) -> int | None:
        """Return the number of learned positions, if positions are learned."""
        table = self.position_embedding
        return None if table is None else table.weight.shape[0]

    def cache_layers(self) -> Sequence[LayerCache]:
        """Return each layer's cache entries; keys with learned positions cannot be shifted."""
        kept = [layer.cached for layer in self.layers]
        return kept if self.position_embedding is None else [forbid_shift(each) for each in kept]

    def hidden(self, batch: Batch) -> Tensor:
        """Return the states of the output rows after the last norm."""
        x = self.embed(batch)
        for i, layer in enumerate(self.layers):
            x = self.add_direction(i, layer.forward(x, batch))
        return self.normalise(x)

    def add_direction(self, layer: int, x: Tensor) -> Tensor:
        """Add a layer's control vector to its states, each of `width` values, in any shape."""
        direction = self.directions.get(layer)
        if direction is None:
            return x
        return x.reshape(-1, self.width).add(direction).reshape(*x.shape)

    def normalise(self, x: Tensor) -> Tensor:
        """Apply the last norm, if there is one."""
        return x if self.output_norm is None else self.output_norm(x)

    def embed(self, batch: Batch) -> Tensor:
        """Return the states of the tokens before the first layer: (tokens, width)."""
        x = self.token_embedding(batch.tokens)
        if self.embedding_scale != 1:
            x = x.scale(factor=self.embedding_scale)
        # After the scale: rows of an image come from its tower, which was trained without it.
        x = self.insert_embeddings(x, batch)
        if self.position_embedding is None:
            return x
        # Padding has position -1, which is not a row of the table.
        positions = batch.positions.maximum(batch.context.from_ints([0]))
        return x.add(self.position_embedding(positions))

    def insert_embeddings(self, x: Tensor, batch: Batch) -> Tensor:
        """Replace rows of (tokens, width) by given embeddings, such as parts of an image."""
        embeddings = batch.input(EMBEDDINGS)
        if embeddings is None:
            return x
        return batch.input_mask(EMBEDDINGS).where(embeddings.slice(-1, 0, self.width), x)
