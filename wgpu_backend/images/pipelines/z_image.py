"""Z-Image and Z-Image-Turbo: Cai et al. 2025."""

from __future__ import annotations

from typing import ClassVar

import wgpu_backend.array as wx
from wgpu_backend.images.pipelines import register
from wgpu_backend.images.pipelines.flow import FlowPipeline
from wgpu_backend.images.pipelines.pipeline import Conditions
from wgpu_backend.images.requests import Request


@register("ZImagePipeline", "ZImageImg2ImgPipeline", "ZImageInpaintPipeline")
class ZImage(FlowPipeline):
    """Z-Image: Qwen3's states after all layers but the last.

    Guidance adds its scale times the difference to the prompt's output, so 0 means no guidance. The
    default is for Z-Image; use 0 for Turbo.
    """

    guidance: ClassVar[float] = 5.0

    def conditions(self, request: Request) -> Conditions:
        """Return the prompt, and the negative prompt if guided, with positions of tokens."""
        found = self._text(request, request.prompt, "")
        scale = self.get_guidance(request)
        if scale > 0:
            found |= self._text(request, request.negative_prompt or "", "negative_")
            found["guidance"] = wx.array([scale], "f32")
        return found

    def _text(self, request: Request, text: str, which: str) -> Conditions:
        tokenizer = self.tokenizers["tokenizer"]
        chat = tokenizer.chat(text, enable_thinking=True)
        length = request.max_sequence_length or self.words
        # No padding: attention would ignore it.
        tokens = tokenizer.batch([chat], length, longest=True)
        states = self.networks["text_encoder"](tokens.ids[0])[-2]
        height, width = (side // self.vae.factor for side in self.picture_size(request))
        rope = self.networks["transformer"].rope(height, width, states.shape[1])
        return {f"{which}text": states, f"{which}rope": wx.array(rope)}

    def predict(self, x: wx.Array, timestep: wx.Array, conditions: Conditions) -> wx.Array:
        """Return the velocity of latents, after guidance; the network's sign is opposite."""
        time = (1000.0 - timestep) / 1000.0
        transformer = self.networks["transformer"]
        output = transformer(x, time, conditions["text"], conditions["rope"])
        if "guidance" in conditions:
            other = transformer(x, time, conditions["negative_text"], conditions["negative_rope"])
            output = output + conditions["guidance"] * (output - other)
        return -output
