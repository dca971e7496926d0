"""T5 and Flan-T5, and T5's encoder.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning", §2.1: positions are encoded by a
bias of scores by distance, for each head and the same in all layers; scores are not scaled. Roberts
et al. 2022, "Scaling Up Models and Data with t5x": T5 1.1 has a gate instead of ReLU, and its own
output matrix. The first version uses the embeddings for it, divided by the root of the width.
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

# Positions; farther ones share a bucket.
REACH = 128


class RelativeTransformer(Transformer):
    """A transformer with bucketed distances: near ones exact, far ones logarithmic."""

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
        """Build attention without rotation and scale."""
        bias = partial(_by_distance, self.by_bucket, causal=self.causal)
        # T5's training scales the initial weights of queries instead of the scores.
        return nn.SelfAttention(config, None, causal=self.causal, scale=1.0, distance_bias=bias)

    def feed_forward(self, config: nn.LayerConfig) -> nn.MLP:
        """Build a feed-forward network, gated if the file has a gate."""
        gated = "ffn_gate.weight" in config
        return nn.MLP(config, "gelu" if gated else "relu", gated=gated)


@architecture("t5encoder")
class T5Encoder(RelativeTransformer, Encoder):
    """T5's encoder, whose tokens attend to all of their text."""

    prefix = "enc."
    output_norm_name = "enc.output_norm"

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer with a bias by distance instead of RoPE."""
        return nn.Layer(config, self.attention(config), self.feed_forward(config))


class T5PromptEncoder(T5Encoder):
    """The encoder in a file that also has a decoder."""

    elsewhere = ("dec.", "output.")


@architecture("t5")
class T5(RelativeTransformer, Decoder):
    """T5's decoder; `T5Encoder` reads prompts."""

    prefix = "dec."
    output_norm_name = "dec.output_norm"
    # Files have a bias of cross-attention, which the paper does not have.
    elsewhere = ("enc.", "dec.blk.0.cross_attn_rel_b.")

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        # The factor belongs to tied embeddings; T5 1.1 has a matrix of its own.
        if backend.get("output.weight") is None:
            self.logit_scale = self.width**-0.5
        self.encoder = T5PromptEncoder(backend)
        self.start = self.config.uint("decoder_start_token_id", 0, at_most=self.vocabulary - 1)

    @property
    def block_count(self) -> int:
        """Return the number of layers of the decoder."""
        return self.config.uint("decoder_block_count", super().block_count, at_least=1)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with cross-attention to the prompt."""
        cross = nn.CrossAttention(config, scale=1.0)
        return nn.CrossLayer(config, self.attention(config), cross, self.feed_forward(config))

    def prompt_encoder(self) -> PromptEncoder:
        """Return the model itself, since it has the encoder as a field."""
        return self

    def project_states(self, states: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        """Return the keys and values of each layer for an encoder's states."""
        return [cast("nn.CrossLayer", layer).cross.project_states(states) for layer in self.layers]


def _by_distance(by_bucket: nn.Embedding, batch: Batch, *, causal: bool) -> Tensor:
    """Return the bias of scores, (heads, 2 * reach + 1), made once per graph."""
    context, key = batch.context, (by_bucket, "by distance")
    # All layers have the same bias, so that it is gathered once.
    bias = context.memo.get(key)
    if bias is None:
        ids = context.from_ints(buckets(by_bucket.weight.shape[0], causal=causal))
        bias = context.memo[key] = by_bucket(ids).transpose().contiguous()
    return bias


def buckets(count: int, *, causal: bool = False) -> Sequence[int]:
    """Return the bucket of each distance from -`REACH` to `REACH`, of key and query.

    Half of the buckets are for either side, or with `causal` all for earlier positions.
    """
    side = count if causal else count // 2
    near = side // 2
    apart = np.arange(-REACH, REACH + 1)
    far = np.log(np.maximum(np.abs(apart), 1) / near) / math.log(REACH / near) * (side - near)
    # At powers of two times `near` the exact result is whole, and rounding could fall short of it.
    far = np.minimum(near + np.floor(far + 1e-6), side - 1)
    within = np.where(np.abs(apart) < near, np.abs(apart), far)
    ahead = apart > 0
    return np.where(ahead, 0 if causal else within + side, within).astype(int).tolist()
