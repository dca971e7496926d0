"""Qwen 1 to 3, with and without experts, and the language models of Qwen2-VL to Qwen3-VL.

Bai et al. 2023, "Qwen Technical Report", §2.3: Llama with biases of queries, keys and values, and
halves rotated. Yang et al. 2024, "Qwen2 Technical Report", §2.2, adds grouped queries and gated
shared experts. Yang et al. 2025, "Qwen3 Technical Report", §2, removes the biases and the shared
experts and normalises the heads of queries and keys.

Wang et al. 2024, "Qwen2-VL", §2.1: heads are rotated by time, height and width, each in a section
of its pairs; for text all three are the same. Bai et al. 2025, "Qwen3-VL Technical Report", §2:
sections are interleaved, and states of three layers of the vision tower are added after the first
layers (DeepStack: Meng et al. 2024, §3).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture
from wgpu_backend.nn.model_inputs import ModelInput, RowsInput
from wgpu_backend.nn.transformer import EMBEDDINGS


@architecture("qwen")
class Qwen(Decoder):
    """Qwen 1, whose feed-forward key is the width of gate and projection together."""

    def layer(self, config: nn.LayerConfig) -> nn.Layer:
        """Build Llama's layer."""
        # The published `intermediate_size` is that of both matrices.
        mlp = nn.MLP(config, inner=config.uint("feed_forward_length") // 2)
        return nn.Layer(config, nn.SelfAttention(config, self.rope), mlp)


@architecture("qwen2")
class Qwen2(Decoder):
    """Qwen 2, with biases where the file has them."""

    def layer(self, config: nn.LayerConfig) -> nn.Layer:
        """Build Llama's layer."""
        return nn.Layer(config, nn.SelfAttention(config, self.rope), nn.MLP(config))


@architecture("qwen2moe")
class Qwen2Moe(Qwen2):
    """Qwen 2 with experts, whose weights are not normalised after the softmax."""

    def layer(self, config: nn.LayerConfig) -> nn.Layer:
        """Build Qwen 2's layer with experts."""
        routing = nn.Routing.from_config(config, normalised=False)
        experts = nn.Experts(config, routing=routing)
        return nn.Layer(config, nn.SelfAttention(config, self.rope), experts)


@architecture("qwen3")
class Qwen3(Decoder):
    """Qwen 3, with norms of query and key heads; rerankers have the output rows of yes and no."""

    # A reranker's answer, yes or no, would follow the last token.
    scored_pooling = "last"

    def __init__(self, backend: Backend) -> None:
        shapes = {name: info.shape for name, info in backend.file.tensors.items()}
        width = backend.config.uint("embedding_length", at_least=1)
        self.classifier = nn.Classifier(width, shapes, partial(self.make_norm, backend.config))
        super().__init__(backend)

    @property
    def is_reranker(self) -> bool:
        """Return whether the file has the rows of yes and no."""
        return self.classifier.is_there

    def score(self, pooled: Tensor) -> Tensor:
        """Return the probabilities of yes and no."""
        there = self.classifier.is_there
        return self.classifier(pooled).softmax() if there else super().score(pooled)

    def layer(self, config: nn.LayerConfig) -> nn.Layer:
        """Build Llama's layer with these norms."""
        attention = nn.SelfAttention(config, self.rope, qk_norm="head")
        return nn.Layer(config, attention, self.feed_forward(config))

    def feed_forward(self, config: nn.LayerConfig) -> nn.FeedForward:
        """Build a SwiGLU network."""
        return nn.MLP(config)


@architecture("qwen3moe")
class Qwen3Moe(Qwen3):
    """Qwen 3 with experts, whose weights are normalised."""

    def feed_forward(self, config: nn.LayerConfig) -> nn.FeedForward:
        """Build experts, weighted by a softmax over the scores of all of them."""
        return nn.Experts(config)


@architecture("qwen2vl")
class Qwen2VL(Qwen2):
    """Qwen2-VL, whose RoPE has separate sections of pairs for time, height and width."""

    sectioning = "blocks"


@architecture("qwen3vl")
class Qwen3VL(Qwen3):
    """Qwen3-VL; rows of ``embeddings`` hold the states for the embedding and the first layers."""

    sectioning = "interleaved"

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        # States are added after a layer, and the last one has dropped rows that are not output.
        most = len(self.layers) - 1
        self.deeper = self.config.uint("n_deepstack_layers", 0, at_most=most)

    def inputs(self) -> Mapping[str, ModelInput]:
        """Return the inputs: rows that replace embeddings, then rows added after each layer."""
        return {**super().inputs(), EMBEDDINGS: RowsInput((1 + self.deeper) * self.width)}

    def hidden(self, batch: Batch) -> Tensor:
        """Return the states of the output rows after the last norm."""
        x = self.embed(batch)
        for i, layer in enumerate(self.layers):
            x = layer.forward(x, batch)
            x = self._add_deepstack(x, batch, i + 1) if i < self.deeper else x
        return self.normalise(x)

    def _add_deepstack(self, x: Tensor, batch: Batch, number: int) -> Tensor:
        """Add the input rows for one layer to (tokens, width), if there are any."""
        rows = batch.input(EMBEDDINGS)
        if rows is None:
            return x
        # Columns of number 0 replace the embeddings, those of number i follow layer i - 1.
        own = rows.slice(-1, number * self.width, (number + 1) * self.width)
        return batch.input_mask(EMBEDDINGS).where(x.add(own), x)


@architecture("qwen3vlmoe")
class Qwen3VLMoe(Qwen3VL):
    """Qwen3-VL with experts, whose weights are normalised."""

    def feed_forward(self, config: nn.LayerConfig) -> nn.FeedForward:
        """Build experts, weighted by a softmax over the scores of all of them."""
        return nn.Experts(config)
