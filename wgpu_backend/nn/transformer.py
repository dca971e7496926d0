"""Stack: what models of one stack of layers have in common, whatever they answer."""

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
from wgpu_backend.nn.kvcache.layers import LayerCache, unmovable
from wgpu_backend.nn.mlp import activated, require_activation
from wgpu_backend.nn.model import Model
from wgpu_backend.nn.rope import Factors
from wgpu_backend.ops.attention.options import POSITION_AXES, Sectioning

EMBEDDINGS = "embeddings"
_DENSE = ("dense_2.weight", "dense_3.weight")


class Stack(Model):
    """Embedding of tokens, layers, and a norm.

    A subclass says in `layer` what a layer is made of; the rest is what most models have, and
    methods that a few replace: `embed`, `make_rope`. `Decoder` adds scores of the next token,
    `Encoder` lets tokens see all of their text. What sentence-transformers calls dense modules maps
    a pooled state on, where the file has those.

    Parameters
    ----------
    backend : Backend

    Attributes
    ----------
    norm : type of Norm
        Kind of every norm.
    output_norm_name : str or None
        Of the last norm's weight; None where no norm follows the layers.
    prefix : str
        What names of the layers' weights begin with.
    elsewhere : tuple of str
        Beginnings of the names of weights that are another model's.
    rope_interleaved : bool
        Whether neighbours are rotated with each other; otherwise halves of a head.
    sectioning : str or None
        How ``rope.dimension_sections`` lie over the pairs, see `RopeOptions`; None where a token
        has one position.
    local_base : float
        Base of the rotation in layers with a window, where a file does not say; 0 for that of the
        others.
    embedding_scale : float
        Factor; 1 where a model does not set it.
    steerable : bool
        A subclass with a `hidden` of its own that calls `steered` says so.
    """

    norm: ClassVar[type[nn.Norm]] = nn.RMSNorm
    output_norm_name: ClassVar[str | None] = "output_norm"
    prefix: ClassVar[str] = ""
    elsewhere: ClassVar[tuple[str, ...]] = ()
    steerable = True
    rope_interleaved: ClassVar[bool] = False
    sectioning: ClassVar[Sectioning | None] = None
    local_base: ClassVar[float] = 0.0
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
        """Take it that a `hidden` of one's own knows no directions, unless the class says so."""
        super().__init_subclass__()
        if "hidden" in vars(cls) and "steerable" not in vars(cls):
            cls.steerable = False

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        self.width = keys.uint("embedding_length", at_least=1)
        self.positions = keys.uint("context_length", 0) or None
        self.vocabulary = backend.require("token_embd.weight").shape[0]
        self._dense_sizes(backend)
        if self.output_norm_name is not None:
            self.output_norm = nn.weight(
                self.output_norm_name, "width", kind=self.make_norm(keys), needed=True
            )
        super().__init__(backend)
        self.embedding_scale = 1.0
        count = self.block_count - keys.uint("nextn_predict_layers", 0)
        self._configs = self._layer_configs(count)
        self.layers = [self.layer(config) for config in self._configs]
        for i, layer in enumerate(self.layers):
            self.fill(layer, f"{self.prefix}blk.{i}.")
        self.require_all_used(count, self.elsewhere)

    def _dense_sizes(self, backend: Backend) -> None:
        """Read how wide what the dense modules make is, and their activations."""
        keys = backend.config
        ways = keys.string("pooling", "").count("+") + 1
        self.pooled_width = keys.uint("dense_2_feat_in", ways * self.width)
        tensors = backend.file.tensors
        rows = [tensors[n].shape[0] if n in tensors else self.width for n in _DENSE]
        self.between = keys.uint("dense_2_feat_out", rows[0])
        self.vector_width = keys.uint("dense_3_feat_out", rows[1])
        self.dense_activations = [keys.string(f"dense_{n}_activation", "") for n in (2, 3)]
        for activation in self.dense_activations:
            require_activation(activation or "tanh")

    def vector(self, pooled: Tensor) -> Tensor:
        """Pooled states behind the dense modules, where the file has them."""
        modules = zip((self.dense_2, self.dense_3), self.dense_activations, strict=True)
        for dense, activation in modules:
            pooled = pooled if dense is None else dense(pooled)
            pooled = activated(activation, pooled) if dense and activation else pooled
        return pooled

    @property
    def block_count(self) -> int:
        """Layers of the file, such as predict several tokens among them."""
        return self.config.uint("block_count", at_least=1)

    def _layer_configs(self, count: int) -> list[nn.LayerConfig]:
        """What the file says of each layer, once it has as many as its key says."""
        tensors = self.backend.file.tensors
        shapes = {name.removeprefix(self.prefix): info.shape for name, info in tensors.items()}
        found = {name.split(".")[1] for name in shapes if name.startswith("blk.")}
        if len(found) != self.block_count:
            raise self.fail(f"it has {len(found)} layers, block_count says {self.block_count}")
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

    def make_rope(self, *, stretched: bool = True, **changes: Any) -> nn.Rotary:  # noqa: ANN401
        """Rotation of queries and keys, by the keys and factors of the file.

        Parameters
        ----------
        stretched : bool
            Whether by the factors, where there are any.
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
        """Options of a rotation by several positions."""
        key = "rope.dimension_sections"
        if self.sectioning is None or key not in self.config:
            return {}
        sections = self.config.ints(key)
        if len(sections) not in (POSITION_AXES - 1, POSITION_AXES):
            raise self.fail(
                f"{key} has {len(sections)} values, needs {POSITION_AXES - 1} or {POSITION_AXES}"
            )
        padded = (*sections, *[0] * (POSITION_AXES - len(sections)))
        return {"sections": padded, "sectioning": self.sectioning}

    @cached_property
    def local_rope(self) -> nn.Rotary:
        """Rotation in layers with a window, of a base of its own and not stretched."""
        own = self.local_base or self.rope.options.base
        base = self.config.float("rope.freq_base_swa", own)
        dims = self.config.uint("rope.dimension_count_swa", self.rope.options.dims)
        plain = {"scale": 1.0, "extrapolation": 0.0, "attention": 1.0}
        return self.make_rope(stretched=False, base=base, dims=dims, **plain)

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
        """What each layer keeps; keys that were made of learned positions cannot move."""
        kept = [layer.cached for layer in self.layers]
        return kept if self.position_embedding is None else [unmovable(each) for each in kept]

    def hidden(self, batch: Batch) -> Tensor:
        """States of the wanted rows after the last norm."""
        x = self.embed(batch)
        for i, layer in enumerate(self.layers):
            x = self.steered(i, layer.forward(x, batch))
        return self.normed(x)

    def steered(self, layer: int, x: Tensor) -> Tensor:
        """States behind a layer, (rows, width) or several side by side, with its direction."""
        direction = self.directions.get(layer)
        if direction is None:
            return x
        return x.reshape(-1, self.width).add(direction).reshape(*x.shape)

    def normed(self, x: Tensor) -> Tensor:
        """States after the last norm, where there is one."""
        return x if self.output_norm is None else self.output_norm(x)

    def embed(self, batch: Batch) -> Tensor:
        """States of the tokens before the first layer: (tokens, width)."""
        x = self.token_embedding(batch.tokens)
        if self.embedding_scale != 1:
            x = x.scale(factor=self.embedding_scale)
        x = self.with_given(x, batch)
        if self.position_embedding is None:
            return x
        positions = batch.positions.maximum(batch.context.from_ints([0]))  # padding stands at -1
        return x.add(self.position_embedding(positions))

    def with_given(self, x: Tensor, batch: Batch) -> Tensor:
        """(tokens, width) with what is given in place of tokens, such as parts of an image."""
        given = batch.given(EMBEDDINGS)
        if given is None:
            return x
        return batch.is_given(EMBEDDINGS).where(given.slice(-1, 0, self.width), x)
