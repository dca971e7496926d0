"""Qwen 1 to 3, those with experts, too, and what reads and writes in Qwen2-VL to Qwen3-VL.

Bai et al. 2023, "Qwen Technical Report", §2.3: Llama with biases of queries, keys and values, and
halves rotated. Yang et al. 2024, "Qwen2 Technical Report", §2.2, adds grouped queries and, to the
experts, shared ones behind a gate; Yang et al. 2025, "Qwen3 Technical Report", §2, takes away the
biases and the shared experts and normalises the heads of queries and keys.

Wang et al. 2024, "Qwen2-VL", §2.1: heads are rotated by time, height and width, each in a section
of its pairs; of text all three are the same. Bai et al. 2025, "Qwen3-VL Technical Report", §2:
sections are interleaved, and states of three layers of the tower are added behind the first layers
(DeepStack: Meng et al. 2024, §3).
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
    """Its key counts the values of gate and projection together."""

    def layer(self, config: nn.LayerConfig) -> nn.Layer:
        """Llama's."""
        mlp = nn.MLP(config, inner=config.uint("feed_forward_length") // 2)
        return nn.Layer(config, nn.SelfAttention(config, self.rope), mlp)


@architecture("qwen2")
class Qwen2(Decoder):
    """Biases are where the file has them."""

    def layer(self, config: nn.LayerConfig) -> nn.Layer:
        """Llama's."""
        return nn.Layer(config, nn.SelfAttention(config, self.rope), nn.MLP(config))


@architecture("qwen2moe")
class Qwen2Moe(Qwen2):
    """Weights of the chosen experts are what the softmax over all gives them."""

    def layer(self, config: nn.LayerConfig) -> nn.Layer:
        """Qwen2's, with experts."""
        routing = nn.Routing.from_config(config, normalised=False)
        experts = nn.Experts(config, routing=routing)
        return nn.Layer(config, nn.SelfAttention(config, self.rope), experts)


@architecture("qwen3")
class Qwen3(Decoder):
    """A norm on every query and key head; a reranker has the output's rows of yes and no."""

    scored_pooling = "last"

    def __init__(self, backend: Backend) -> None:
        shapes = {name: info.shape for name, info in backend.file.tensors.items()}
        width = backend.config.uint("embedding_length", at_least=1)
        self.classifier = nn.Classifier(width, shapes, partial(self.make_norm, backend.config))
        super().__init__(backend)

    @property
    def is_reranker(self) -> bool:
        """Whether the file has the rows of yes and no."""
        return self.classifier.is_there

    def score(self, pooled: Tensor) -> Tensor:
        """Probabilities of yes and no."""
        there = self.classifier.is_there
        return self.classifier(pooled).softmax() if there else super().score(pooled)

    def layer(self, config: nn.LayerConfig) -> nn.Layer:
        """Llama's, with these norms."""
        attention = nn.SelfAttention(config, self.rope, qk_norm="head")
        return nn.Layer(config, attention, self.feed_forward(config))

    def feed_forward(self, config: nn.LayerConfig) -> nn.FeedForward:
        """SwiGLU."""
        return nn.MLP(config)


@architecture("qwen3moe")
class Qwen3Moe(Qwen3):
    """Experts, whose weights are normalised."""

    def feed_forward(self, config: nn.LayerConfig) -> nn.FeedForward:
        """Softmax over all experts."""
        return nn.Experts(config)


@architecture("qwen2vl")
class Qwen2VL(Qwen2):
    """One section behind the other."""

    sectioning = "blocks"


@architecture("qwen3vl")
class Qwen3VL(Qwen3):
    """``embeddings`` are as wide as states of all layers that they are for, side by side."""

    sectioning = "interleaved"

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        most = len(self.layers) - 1
        self.deeper = self.config.uint("n_deepstack_layers", 0, at_most=most)

    def inputs(self) -> Mapping[str, ModelInput]:
        """What replaces embeddings, then what is added behind each layer."""
        return {**super().inputs(), EMBEDDINGS: RowsInput((1 + self.deeper) * self.width)}

    def hidden(self, batch: Batch) -> Tensor:
        """States of the wanted rows after the last norm."""
        x = self.embed(batch)
        for i, layer in enumerate(self.layers):
            x = layer.forward(x, batch)
            x = self._with_deeper(x, batch, i + 1) if i < self.deeper else x
        return self.normalise(x)

    def _with_deeper(self, x: Tensor, batch: Batch, number: int) -> Tensor:
        """(tokens, width) with what is given for one layer, where something is."""
        given = batch.input(EMBEDDINGS)
        if given is None:
            return x
        own = given.slice(-1, number * self.width, (number + 1) * self.width)
        return batch.input_mask(EMBEDDINGS).where(x.add(own), x)


@architecture("qwen3vlmoe")
class Qwen3VLMoe(Qwen3VL):
    """Experts, whose weights are normalised."""

    def feed_forward(self, config: nn.LayerConfig) -> nn.FeedForward:
        """Softmax over all experts."""
        return nn.Experts(config)
