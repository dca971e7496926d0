"""Whisper: a transformer from the log-mel spectrogram of 30 seconds of speech to text.

Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision", §2.2: two
convolutions of width 3, the second with a stride of 2, and sinusoidal positions, then pre-norm
layers whose positions attend to each other. The decoder has learned positions, attends to the
encoder's states, and its output matrix is the embedding. Keys have no bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.audio.blocks import STRIDE, Convolution
from wgpu_backend.nn.audio.mel import FRAMES
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.encoder import Encoder
from wgpu_backend.nn.model import PromptEncoder, architecture
from wgpu_backend.nn.model_inputs import ModelInput, TokenInput


class WhisperEncoder(Encoder):
    """The encoder, whose tokens are pairs of spectrogram frames."""

    norm = nn.LayerNorm
    prefix = "enc."
    output_norm_name = "enc.output_norm"
    # The file also has the decoder's weights.
    elsewhere = ("dec.", "output.")

    state_positions: nn.Embedding = nn.weight("a.position_embd", "states", "width")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        width = keys.uint("embedding_length", at_least=1)
        self.bands = keys.uint("audio_band_count", 80, at_least=1)
        self.states = keys.uint("audio_context_length", 1500, at_least=1)
        self.first = nn.weight("a.conv1d.1", kind=Convolution(self.bands, width), needed=True)
        self.second = nn.weight("a.conv1d.2", kind=Convolution(width, width), needed=True)
        super().__init__(backend)

    @property
    def block_count(self) -> int:
        """Return the number of layers of the encoder."""
        return self.config.uint("encoder_block_count", super().block_count, at_least=1)

    def inputs(self) -> Mapping[str, ModelInput]:
        """Return the encoder's input: for each token, the values of its spectrogram frames."""
        return {FRAMES: TokenInput((STRIDE * self.bands,))}

    def embed(self, batch: Batch) -> Tensor:
        """Return the states before the first layer: (tokens, width)."""
        frames = batch.inputs[FRAMES].reshape(1, -1, self.bands)
        x = self.second(self.first(frames), STRIDE).reshape(-1, self.width)
        # Padding has position -1, which is not a row of the table.
        positions = batch.positions.maximum(batch.context.from_ints([0]))
        return x.add(self.state_positions(positions))

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a pre-norm layer whose positions attend to each other."""
        attention = nn.SelfAttention(config, None, causal=False)
        return nn.Layer(config, attention, nn.MLP(config, "gelu_erf", gated=False))


@architecture("whisper")
class Whisper(Decoder):
    """Whisper's decoder; `WhisperEncoder` reads the sound."""

    norm = nn.LayerNorm
    takes_sound = True
    prefix = "dec."
    output_norm_name = "dec.output_norm"
    elsewhere = ("enc.", "a.")

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.encoder = WhisperEncoder(backend)
        self.start = self.config.uint("decoder_start_token_id", 0, at_most=self.vocabulary - 1)

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with cross-attention to the sound."""
        attention, cross = nn.SelfAttention(config, None), nn.CrossAttention(config)
        return nn.CrossLayer(config, attention, cross, nn.MLP(config, "gelu_erf", gated=False))

    def prompt_encoder(self) -> PromptEncoder:
        """Return the model itself, since it has the encoder as a field."""
        return self

    def project_states(self, states: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        """Return the keys and values of each layer for the encoder's states."""
        return [cast("nn.CrossLayer", layer).cross.project_states(states) for layer in self.layers]
