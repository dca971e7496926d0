"""T5 and Flan-T5, and T5's encoder.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning", §2.1: what is added to scores by
distance, for each head and the same in all layers, tells positions; scores are not scaled. Roberts
et al. 2022, "Scaling Up Models and Data with t5x", T5 1.1: a gate, where the first has ReLU, and an
output of its own, where the first takes the embeddings for it, by the root of the width less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, cast

import numpy as np

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.encoder import Encoder
from wgpu_backend.nn.model import PromptEncoder, architecture
from wgpu_backend.nn.transformer import Transformer

REACH = 128  # positions; those farther away are all alike


class RelativeStack(Transformer):
    """Distances fall into buckets: near ones each into its own, far ones by their logarithm."""

    causal: ClassVar[bool]
    by_bucket: nn.Embedding

    def __init__(self, backend: Backend) -> None:
        self.buckets = backend.config.uint("attention.relative_buckets_count", at_least=4)
        self.heads = backend.config.uint("attention.head_count", at_least=1)
        self.by_bucket = nn.weight(
            f"{self.prefix}blk.0.attn_rel_b", "buckets", "heads", kind=nn.Embedding, needed=True
        )
        super().__init__(backend)

    def attention(self, config: nn.LayerConfig) -> nn.SelfAttention:
        """Not rotated, not scaled."""
        bias = partial(_by_distance, self.by_bucket, causal=self.causal)
        return nn.SelfAttention(config, None, causal=self.causal, scale=1.0, distance_bias=bias)

    def feed_forward(self, config: nn.LayerConfig) -> nn.MLP:
        """With a gate where the file has one."""
        gated = "ffn_gate.weight" in config
        return nn.MLP(config, "gelu" if gated else "relu", gated=gated)


@architecture("t5encoder")
class T5Encoder(RelativeStack, Encoder):
    """Tokens see all of their text."""

    prefix = "enc."
    output_norm_name = "enc.output_norm"

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Llama's, not rotated."""
        return nn.Layer(config, self.attention(config), self.feed_forward(config))


class T5Reader(T5Encoder):
    """The encoder of a file that has a decoder, too."""

    elsewhere = ("dec.", "output.")


@architecture("t5")
class T5(RelativeStack, Decoder):
    """What writes; prompts are read by `T5Encoder`."""

    prefix = "dec."
    output_norm_name = "dec.output_norm"
    elsewhere = ("enc.", "dec.blk.0.cross_attn_rel_b.")  # files have it, the paper has not

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        if backend.get("output.weight") is None:
            self.logit_scale = self.width**-0.5
        self.encoder = T5Reader(backend)
        self.start = self.config.uint("decoder_start_token_id", 0, at_most=self.vocabulary - 1)

    @property
    def block_count(self) -> int:
        """Layers of the decoder."""
        return self.config.uint("decoder_block_count", super().block_count, at_least=1)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Attention to the prompt between the two parts."""
        cross = nn.CrossAttention(config, scale=1.0)
        return nn.CrossLayer(config, self.attention(config), cross, self.feed_forward(config))

    def prompt_encoder(self) -> PromptEncoder:
        """The model itself, which has the encoder."""
        return self

    def project_states(self, states: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        """Keys and values of each layer for an encoder's states."""
        return [cast("nn.CrossLayer", layer).cross.project_states(states) for layer in self.layers]


def _by_distance(by_bucket: nn.Embedding, batch: Batch, *, causal: bool) -> Tensor:
    """What is added to scores, (heads, 2 * reach + 1); once a graph."""
    context, key = batch.context, (by_bucket, "by distance")
    bias = context.memo.get(key)
    if bias is None:
        ids = context.from_ints(buckets(by_bucket.weight.shape[0], causal=causal))
        bias = context.memo[key] = by_bucket(ids).transpose().contiguous()
    return bias


def buckets(count: int, *, causal: bool = False) -> Sequence[int]:
    """Bucket of each distance from -`REACH` to `REACH`, of key and query.

    Half of the buckets are for either side, or with `causal` all for what is before.
    """
    side = count if causal else count // 2
    near = side // 2
    apart = np.arange(-REACH, REACH + 1)
    far = np.log(np.maximum(np.abs(apart), 1) / near) / math.log(REACH / near) * (side - near)
    # Powers of two of `near` are whole numbers, which a logarithm may miss.
    far = np.minimum(near + np.floor(far + 1e-6), side - 1)
    within = np.where(np.abs(apart) < near, np.abs(apart), far)
    ahead = apart > 0
    return np.where(ahead, 0 if causal else within + side, within).astype(int).tolist()
