"""Stable Diffusion 1 and 2, XL, and 3: Rombach et al. 2022; Podell et al. 2023; Esser et al. 2024.

They differ in the text encoders and in the network.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

import wgpu_backend.array as wx
from wgpu_backend.images.pipelines import register
from wgpu_backend.images.pipelines.latent import LatentPipeline, apply_guidance, twice
from wgpu_backend.images.pipelines.pipeline import Conditions
from wgpu_backend.images.requests import Request

# Default length of T5's prompts.
T5_TOKENS = 256


@register(
    "StableDiffusionPipeline",
    "StableDiffusionImg2ImgPipeline",
    "StableDiffusionInpaintPipeline",
)
class StableDiffusion(LatentPipeline):
    """Stable Diffusion 1 and 2: one CLIP, whose tokens the UNet attends to."""

    def conditions(self, request: Request) -> Conditions:
        """Return the prompt's states, after the negative prompt's if guided."""
        texts = self.texts(request)
        rows = [self.clip("", text).last for text in texts]
        return {"text": wx.concat(rows), **self.guidance_conditions(request)}

    def texts(self, request: Request) -> list[str]:
        """Return [negative, prompt], or the prompt only without guidance."""
        if self.get_guidance(request) <= 1:
            return [request.prompt]
        return [request.negative_prompt or "", request.prompt]

    def guidance_conditions(self, request: Request) -> Conditions:
        """Return the guidance scale, if there is guidance."""
        scale = self.get_guidance(request)
        return {"guidance": wx.array([scale], "f32")} if scale > 1 else {}

    def clip(self, which: str, text: str):  # noqa: ANN201  the type is in a file of models
        """Run a CLIP on a text; `which` is ``""`` or ``"_2"``."""
        tokens = self.tokenizers[f"tokenizer{which}"].batch([text])
        return self.networks[f"text_encoder{which}"](tokens.ids)

    def predict(self, x: wx.Array, timestep: wx.Array, conditions: Conditions) -> wx.Array:
        """Return the noise in latents, after guidance."""
        x = twice(x, conditions)
        if "painted" in conditions:
            x = wx.concat([x, twice(conditions["painted"], conditions)], axis=-1)
        extra = [conditions[k] for k in ("pooled", "numbers") if k in conditions]
        return apply_guidance(
            self.networks["unet"](x, timestep, conditions["text"], *extra), conditions
        )


@register(
    "StableDiffusionXLPipeline",
    "StableDiffusionXLImg2ImgPipeline",
    "StableDiffusionXLInpaintPipeline",
)
class StableDiffusionXL(StableDiffusion):
    """Stable Diffusion XL: two CLIPs with concatenated states, and the image size as input."""

    guidance: ClassVar[float] = 5.0
    native: ClassVar[int] = 128

    def conditions(self, request: Request) -> Conditions:
        """Return the states and pooled vector of the texts, and sizes."""
        height, width = self.picture_size(request)
        # Original size, upper left corner of the crop, and target size.
        numbers = np.array([height, width, 0, 0, height, width], np.float32)
        texts = self.texts(request)
        encoded = [self._encode_text(text) for text in texts]
        if len(texts) == 2 and request.negative_prompt is None and self._zeros():
            encoded[0] = (encoded[0][0] * 0.0, encoded[0][1] * 0.0)
        return {
            "text": wx.concat([tokens for tokens, _ in encoded]),
            "pooled": wx.concat([vector for _, vector in encoded]),
            "numbers": wx.array(np.tile(numbers, (len(texts), 1))),
            **self.guidance_conditions(request),
        }

    def _encode_text(self, text: str) -> tuple[wx.Array, wx.Array]:
        """Return states (1, 77, width) and vector (1, width) of a text."""
        parts = [self.clip(which, text) for which in ("", "_2") if self._has(which)]
        tokens = wx.concat([part.states[-2] for part in parts], axis=-1)
        return tokens, parts[-1].pooled

    def _has(self, which: str) -> bool:
        return f"text_encoder{which}" in self.networks

    def _zeros(self) -> bool:
        """Return whether zeros replace a missing negative prompt, instead of an empty text."""
        return self.folder.index.flag("force_zeros_for_empty_prompt", default=True)


@register(
    "StableDiffusion3Pipeline",
    "StableDiffusion3Img2ImgPipeline",
    "StableDiffusion3InpaintPipeline",
)
class StableDiffusion3(StableDiffusion):
    """Stable Diffusion 3 and 3.5: two CLIPs, then the states of T5."""

    denoiser: ClassVar[str] = "transformer"
    guidance: ClassVar[float] = 7.0
    steps: ClassVar[int] = 28
    strength: ClassVar[float] = 0.6
    native: ClassVar[int] = 128

    def conditions(self, request: Request) -> Conditions:
        """Return the states and pooled vector of the texts."""
        encoded = [self._encode_text(request, text) for text in self.texts(request)]
        return {
            "text": wx.concat([tokens for tokens, _ in encoded]),
            "pooled": wx.concat([vector for _, vector in encoded]),
            **self.guidance_conditions(request),
        }

    def _encode_text(self, request: Request, text: str) -> tuple[wx.Array, wx.Array]:
        """Return states (1, 77 + T5's, width) and vector (1, width) of a text."""
        parts = [self.clip(which, text) for which in ("", "_2")]
        of_t5 = self._encode_t5(request, text)
        side_by_side = wx.concat([part.states[-2] for part in parts], axis=-1)
        n, tokens, width = side_by_side.shape
        rest = wx.zeros((n, tokens, of_t5.shape[-1] - width))
        padded = wx.concat([side_by_side, rest], axis=-1)
        pooled = wx.concat([part.pooled for part in parts], axis=-1)
        return wx.concat([padded, of_t5], axis=1), pooled

    def _encode_t5(self, request: Request, text: str) -> wx.Array:
        """Return T5's states; zeros in a folder without T5."""
        length = request.max_sequence_length or T5_TOKENS
        if "text_encoder_3" not in self.networks:
            width = self.folder["transformer"].settings.uint("joint_attention_dim")
            return wx.zeros((1, length, width))
        ids: NDArray[np.int64] = self.tokenizers["tokenizer_3"].batch([text], length).ids
        return self.networks["text_encoder_3"](ids)

    def predict(self, x: wx.Array, timestep: wx.Array, conditions: Conditions) -> wx.Array:
        """Return the velocity of latents, after guidance."""
        x = twice(x, conditions)
        if "painted" in conditions:
            x = wx.concat([x, twice(conditions["painted"], conditions)], axis=-1)
        text, pooled = conditions["text"], conditions["pooled"]
        return apply_guidance(self.networks["transformer"](x, timestep, text, pooled), conditions)
