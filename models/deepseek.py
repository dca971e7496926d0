"""DeepSeek MoE, V2, V3 and OCR, GLM 4.7 Flash, Kimi K2, Mistral Small 4, GigaChat 3, PLM, Youtu.

Dai et al. 2024, "DeepSeekMoE", §3: many small experts, some of them shared, after a first dense
layer. DeepSeek-AI 2024, "DeepSeek-V2", §2, and "DeepSeek-V3 Technical Report", §2.1: latent
attention. V2 weighs experts by a softmax; V3 uses a sigmoid, a bias for the choice, and groups of
experts. Mistral scales queries by their position. The language model of DeepSeek-OCR has V2's
experts and plain attention.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from wgpu_backend import nn
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture


@architecture("deepseek")
class DeepSeek(Decoder):
    """DeepSeek MoE 16B, with Llama's attention."""

    rope_interleaved = True

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer, with experts after the first layers."""
        attention = nn.SelfAttention(config, self.rope)
        routing = nn.Routing.from_config(config, normalised=False)
        mlp = nn.MLP(config) if config.precedes_experts else nn.Experts(config, routing=routing)
        return nn.Layer(config, attention, mlp)


@architecture("deepseek2")
class DeepSeek2(Decoder):
    """DeepSeek V2 and V3, with RoPE of adjacent pairs."""

    rope_interleaved = True

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a pre-norm layer of latent attention and feed-forward or experts."""
        attention = nn.LatentAttention(
            config, self.rope, scale=self.score_scale(config), temperature=self.temperature(config)
        )
        if config.precedes_experts:
            return nn.Layer(config, attention, nn.MLP(config))
        # V2's `norm_topk_prob` is false; files of V3 have the key.
        routing = nn.Routing.from_config(config, normalised=False)
        return nn.Layer(config, attention, nn.Experts(config, routing=routing))

    def stretch(self, multiplier: float) -> float:
        """Return YaRN's temperature times a number (Peng et al. 2023, §3.4); 1 without YaRN."""
        if self.config.string("rope.scaling.type", "none") != "yarn":
            return 1.0
        return 1 + 0.1 * multiplier * math.log(self.config.float("rope.scaling.factor", 1.0))

    @property
    def multiplier(self) -> float:
        """Return ``mscale_all_dim`` of the published configuration; files store a tenth of it."""
        return self.config.float("rope.scaling.yarn_log_multiplier", 0.0) / 0.1

    def magnitude(self) -> float:
        """Return the factor of rotated values: YaRN's, unless it scales scores instead."""
        return 1.0 if self.multiplier else self.stretch(1.0)

    def make_rope(self, **changes: Any) -> nn.Rotary:  # noqa: ANN401
        """Make the rotation with that magnitude."""
        # The rotation multiplies by YaRN's temperature itself, so that it is divided out here.
        own = self.config.float("rope.scaling.attn_factor", 1.0)
        attention = own * self.magnitude() / self.stretch(1.0)
        changes.setdefault("attention", attention)
        return super().make_rope(**changes)

    def score_scale(self, config: nn.LayerConfig) -> float:
        """Return the factor of scores: the file's, or the paper's."""
        if "attention.scale" in self.config:
            return self.config.float("attention.scale")
        # Where keys are absorbed into queries, `key_length` is that of latents; the scale is still
        # that of a head of the paper.
        head = config.uint("attention.key_length_mla", config.uint("attention.key_length"))
        # Squared, since queries and keys would each be multiplied by the temperature.
        return (self.magnitude() * self.stretch(self.multiplier)) ** 2 * head**-0.5

    def temperature(self, config: nn.LayerConfig) -> nn.Temperature | None:
        """Return the scale of queries by position, if the file has one."""
        growth = config.float("attention.temperature_scale", 0.0)
        length = config.uint("attention.temperature_length", 0)
        return nn.Temperature(growth, length) if growth else None


@architecture("mistral4")
class Mistral4(DeepSeek2):
    """Mistral Small 4, whose magnitude is YaRN's divided by that of the scores."""

    def magnitude(self) -> float:
        """Return the factor of rotated values."""
        return self.stretch(1.0) / self.stretch(self.multiplier)


@architecture("deepseek2-ocr")
class DeepSeekOcr(Decoder):
    """The language model of DeepSeek-OCR."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer, with experts after the first layers."""
        attention = nn.SelfAttention(config, self.rope)
        routing = nn.Routing.from_config(config, normalised=False)
        mlp = nn.MLP(config) if config.precedes_experts else nn.Experts(config, routing=routing)
        return nn.Layer(config, attention, mlp)

    def make_rope(self, **changes: Any) -> nn.Rotary:  # noqa: ANN401
        """Make a rotation of whole heads; files say that it is of none, the size for latents."""
        heads = self.config.uint("attention.head_count", at_least=1)
        head = self.config.uint("attention.key_length", self.width // heads)
        base = self.config.float("rope.freq_base", 10000.0)
        return nn.Rotary(replace(nn.RopeOptions(head, base), **changes))


@architecture("plm")
class Plm(Decoder):
    """PLM 1.8B (Deng et al. 2025, "PLM", §2): latent attention, and squared ReLU without a gate."""

    rope_interleaved = True

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a pre-norm layer of latent attention and feed-forward."""
        mlp = nn.MLP(config, "relu2", gated=False)
        return nn.Layer(config, nn.LatentAttention(config, self.rope), mlp)
