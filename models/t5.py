"""T5's encoder.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning", §2.1: what is added to scores by
distance, for each head and the same in all layers, tells positions; scores are not scaled. Roberts
et al. 2022, "Scaling Up Models and Data with t5x", T5 1.1: a gate, where the first has ReLU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from wgpu_backend import nn
from wgpu_backend.batch import Batch
from wgpu_backend.encoder import Encoder
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.model import architecture

REACH = 128  # positions; those farther away are all alike


@architecture("t5encoder")
class T5Encoder(Encoder):
    """Distances fall into buckets: near ones each into its own, far ones by their logarithm."""

    prefix = "enc."
    output_norm_name = "enc.output_norm"
    by_bucket: nn.Embedding = nn.weight("enc.blk.0.attn_rel_b", "buckets", "heads")

    def __init__(self, backend: Backend) -> None:
        self.buckets = backend.config.uint("attention.relative_buckets_count", at_least=4)
        self.heads = backend.config.uint("attention.head_count", at_least=1)
        super().__init__(backend)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Llama's, not rotated."""
        attention = nn.SelfAttention(
            config,
            None,
            causal=False,
            scale=1.0,
            distance_bias=partial(_by_distance, self.by_bucket),
        )
        gated = "ffn_gate.weight" in config
        return nn.Layer(config, attention, nn.MLP(config, "gelu" if gated else "relu", gated=gated))


def _by_distance(by_bucket: nn.Embedding, batch: Batch) -> Tensor:
    """What is added to scores, (heads, 2 * reach + 1); once a graph."""
    context, key = batch.context, (by_bucket, "by distance")
    bias = context.memo.get(key)
    if bias is None:
        ids = context.from_ints(buckets(by_bucket.weight.shape[0]))
        bias = context.memo[key] = by_bucket(ids).transpose().contiguous()
    return bias


def buckets(count: int) -> Sequence[int]:
    """Bucket of each distance from -`REACH` to `REACH`, of key and query; half for either side."""
    side = count // 2
    near = side // 2
    apart = np.arange(-REACH, REACH + 1)
    far = np.log(np.maximum(np.abs(apart), 1) / near) / math.log(REACH / near) * (side - near)
    # Powers of two of `near` are whole numbers, which a logarithm may miss.
    far = np.minimum(near + np.floor(far + 1e-6), side - 1)
    within = np.where(np.abs(apart) < near, np.abs(apart), far)
    return (within + side * (apart > 0)).astype(int).tolist()
