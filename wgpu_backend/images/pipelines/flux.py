"""FLUX.1 dev and schnell: Black Forest Labs 2024."""

from __future__ import annotations

from typing import ClassVar

import wgpu_backend.array as wx
from wgpu_backend.images.pipelines import register
from wgpu_backend.images.pipelines.flow import FlowPipeline, pack, unpack
from wgpu_backend.images.pipelines.pipeline import Conditions
from wgpu_backend.images.requests import Request

# Steps of schnell.
QUICK = 4


@register("FluxPipeline", "FluxImg2ImgPipeline", "FluxInpaintPipeline")
class Flux(FlowPipeline):
    """FLUX.1: T5's states, CLIP's vector, and in dev the guidance scale as an input."""

    steps: ClassVar[int] = 28
    guidance: ClassVar[float] = 3.5
    packs: ClassVar[bool] = True

    def count_steps(self, request: Request) -> int:
        """Return the number of steps: few by default for models without guidance."""
        default = self.steps if self.networks["transformer"].guided else QUICK
        return request.num_inference_steps or default

    def conditions(self, request: Request) -> Conditions:
        """Return the prompt, positions of all tokens, and the guidance scale."""
        self.require_no_negative(request)
        length = request.max_sequence_length or self.words
        tokens = self.tokenizers["tokenizer_2"].batch([request.prompt], length)
        vector = self.tokenizers["tokenizer"].batch([request.prompt])
        transformer = self.networks["transformer"]
        found = {
            "text": self.networks["text_encoder_2"](tokens.ids),
            "pooled": self.networks["text_encoder"](vector.ids).pooled,
            "rope": wx.array(transformer.rope(self.get_grid(request), length)),
        }
        if transformer.guided:
            found["guidance"] = wx.array([self.get_guidance(request)], "f32")
        return found

    def predict(self, x: wx.Array, timestep: wx.Array, conditions: Conditions) -> wx.Array:
        """Return the velocity of latents."""
        rows, columns = x.shape[1] // 2, x.shape[2] // 2
        output = self.networks["transformer"](
            pack(x),
            timestep / 1000.0,
            conditions["text"],
            conditions["pooled"],
            conditions["rope"],
            conditions.get("guidance"),
        )
        return unpack(output, rows, columns)
