"""The text halves of CLIP and SigLIP, whose vectors are in one space with those of pictures.

Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision", §2.4:
a causal transformer; a text's vector is the projected state of the token that ends it. Zhai et al.
2023, "Sigmoid Loss for Language Image Pre-Training", §3, and the published code: tokens attend to
all of their text, which is padded to the table of positions; its vector is the projected state of
the last place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from wgpu_backend import nn
from wgpu_backend.nn.encoder import Encoder
from wgpu_backend.nn.model import architecture


class SharedSpaceText(Encoder):
    """The text half of a model with a picture half; ``dense_2`` projects a text's state."""

    norm = nn.LayerNorm
    activation: ClassVar[str]
    position_embedding = nn.weight("position_embd", "positions", "width", needed=True)

    @property
    def shared_cols(self) -> int:
        """Return the columns of vectors."""
        return self.width if self.dense_2 is None else self.dense_2.weight.shape[0]

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a pre-norm layer without rotation: positions are in the embeddings."""
        attention = nn.SelfAttention(config, None, causal=self.causal)
        return nn.Layer(config, attention, nn.MLP(config, self.activation, gated=False))


@architecture("clip-text")
class ClipText(SharedSpaceText):
    """CLIP's text half."""

    causal = True
    activation = "gelu_quick"

    def fit_text(self, tokens: Sequence[int]) -> list[int]:
        """Drop the tokens after the end token: the state of the last token stands for the text.

        Files without ``text_end_token_id`` are from the time when the end was the token with the
        highest id; transformers still follows these.
        """
        ids = list(tokens)
        end = self.config.uint("text_end_token_id", max(ids, default=0))
        return ids[: ids.index(end) + 1] if end in ids else ids[:1]


@architecture("siglip-text")
class SiglipText(SharedSpaceText):
    """SigLIP's text half."""

    activation = "gelu"

    def fit_text(self, tokens: Sequence[int]) -> list[int]:
        """Pad a text to the table of positions, as it was in training."""
        pad = self.config.uint("tokenizer.ggml.padding_token_id")
        return [*tokens, *[pad] * ((self.positions or 0) - len(tokens))]
