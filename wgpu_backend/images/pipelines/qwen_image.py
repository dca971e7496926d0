"""Qwen-Image, and Qwen-Image-Edit, which takes a reference image: Wu et al. 2025."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

import wgpu_backend.array as wx
from wgpu_backend.errors import OptionError
from wgpu_backend.images import pictures
from wgpu_backend.images.folder import PipelineFolder
from wgpu_backend.images.pipelines import register
from wgpu_backend.images.pipelines.flow import FlowPipeline, pack, unpack
from wgpu_backend.images.pipelines.pipeline import Conditions
from wgpu_backend.images.requests import Draw, Request
from wgpu_backend.images.schedule import Schedule
from wgpu_backend.images.vision_patches import vision_patches

_CHAT = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
_PICTURE = "<|vision_start|>{}<|vision_end|>{}"
_MARKER = "<|image_pad|>"
# The instructions of training.
_DESCRIBE = (
    "Describe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:"
)
_EDIT = (
    "Describe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. "
    "Generate a new image that meets the user's requirements while maintaining consistency with "
    "the original input where appropriate."
)


@register("QwenImagePipeline", "QwenImageImg2ImgPipeline", "QwenImageInpaintPipeline")
class QwenImage(FlowPipeline):
    """Qwen-Image: Qwen2.5-VL's last states, without those of the leading instructions."""

    guidance: ClassVar[float] = 4.0
    words: ClassVar[int] = 1024
    packs: ClassVar[bool] = True
    # Tokens of the instructions.
    dropped: ClassVar[int] = 34

    def conditions(self, request: Request) -> Conditions:
        """Return the prompt, and the negative prompt if guided, with positions of tokens."""
        return self._both(request, None)

    def _both(self, request: Request, picture: Any) -> Conditions:  # noqa: ANN401  Pillow's image
        found = self._text(request, request.prompt, "", picture)
        scale = self.get_guidance(request)
        if scale > 1 and request.negative_prompt is not None:
            found |= self._text(request, request.negative_prompt, "negative_", picture)
            found["guidance"] = wx.array([scale], "f32")
        return found

    def _text(self, request: Request, text: str, which: str, picture: Any) -> Conditions:  # noqa: ANN401
        states = self.encode_text(text, picture)[:, self.dropped :]
        states = states[:, : request.max_sequence_length or self.words]
        rope = self.networks["transformer"].rope(self.get_grids(request), states.shape[1])
        return {f"{which}text": states, f"{which}rope": wx.array(rope)}

    def encode_text(self, text: str, picture: Any) -> wx.Array:  # noqa: ANN401  Pillow's image
        """Return the states (1, tokens, width) of a prompt with its instructions."""
        del picture
        length = self.words + self.dropped
        chat = _CHAT.format(_DESCRIBE, text)
        tokens = self.tokenizers["tokenizer"].batch([chat], length, longest=True)
        return self.networks["text_encoder"](tokens.ids[0])[-1]

    def get_grids(self, request: Request) -> list[tuple[int, int]]:
        """Return the rows and columns of tokens of all images, the generated one first."""
        return [self.get_grid(request)]

    def predict(self, x: wx.Array, timestep: wx.Array, conditions: Conditions) -> wx.Array:
        """Return the velocity after guidance that keeps the length of each token's vector."""
        rows, columns = x.shape[1] // 2, x.shape[2] // 2
        output = self._velocity(x, timestep, conditions, "")
        if "guidance" in conditions:
            other = self._velocity(x, timestep, conditions, "negative_")
            mixed = other + conditions["guidance"] * (output - other)
            output = mixed * (_length(output) / _length(mixed))
        return unpack(output, rows, columns)

    def _velocity(
        self, x: wx.Array, timestep: wx.Array, conditions: Conditions, which: str
    ) -> wx.Array:
        tokens = pack(x)
        made = tokens.shape[1]
        if "seen" in conditions:
            tokens = wx.concat([tokens, conditions["seen"]], axis=1)
        text, rope = conditions[f"{which}text"], conditions[f"{which}rope"]
        return self.networks["transformer"](tokens, timestep / 1000.0, text, rope)[:, :made]


def _length(tokens: wx.Array) -> wx.Array:
    return wx.sqrt(wx.sum(wx.square(tokens), axis=-1, keepdims=True))


@register("QwenImageEditPipeline")
class QwenImageEdit(QwenImage):
    """Qwen-Image-Edit: the text encoder and the transformer both take a reference image.

    Attributes
    ----------
    area : int
        Pixels that the reference image is scaled to.
    in_a_row : bool
        See `wgpu_backend.models.images.qwen_vl.QwenVLEncoder`.
    """

    dropped: ClassVar[int] = 64

    def __init__(self, folder: PipelineFolder, *, exact: bool = False) -> None:
        super().__init__(folder, exact=exact)
        self.area = 1024 * 1024
        self.in_a_row = False

    def starts_from_image(self, request: Request) -> bool:
        """Return False: the image is a reference."""
        return False

    def _scale_image(self, request: Request) -> Any:  # noqa: ANN401  Pillow's image
        if request.image is None:
            raise OptionError(f"{self.folder.class_name} edits an image, give image")
        picture = pictures.load_picture(request.image)
        size = pictures.fit_area(picture.size, self.area, 32)
        return pictures.resize(picture, *size)

    def picture_size(self, request: Request) -> tuple[int, int]:
        """Return height and width; by default those of the scaled reference image."""
        width, height = self._scale_image(request).size
        return self.choose_size(request, (height, width))

    def get_grids(self, request: Request) -> list[tuple[int, int]]:
        """Return the rows and columns of tokens of the generated image and the reference."""
        width, height = self._scale_image(request).size
        return [self.get_grid(request), (height // self.multiple, width // self.multiple)]

    def conditions(self, request: Request) -> Conditions:
        """Return the texts with the reference image, and its tokens."""
        picture = self._scale_image(request)
        seen = pack(self.encode_mean(pictures.encoder_input(picture)))
        return {**self._both(request, picture), "seen": seen}

    def begin(
        self, request: Request, schedule: Schedule, draw: Draw
    ) -> tuple[wx.Array, Conditions]:
        """Return the first latents."""
        height, width = self.picture_size(request)
        factor = self.vae.factor
        shape = (1, self.vae.channels, height // factor, width // factor)
        return self._first_noise(request, shape, draw) * schedule.initial_scale, {}

    def encode_text(self, text: str, picture: Any) -> wx.Array:  # noqa: ANN401  Pillow's image
        """Return the states (1, tokens, width) of a prompt with instructions and image."""
        settings = self.folder["processor"].settings
        if "image_processor" in settings:
            settings = settings.section("image_processor")
        patches, grid = vision_patches(picture, settings)
        encoder = self.networks["text_encoder"]
        count = grid[0] * grid[1] * grid[2] // encoder.merge**2
        chat = _CHAT.format(_EDIT, _PICTURE.format(_MARKER * count, text))
        ids = np.array(self.tokenizers["tokenizer"].ids(chat))
        return encoder(ids, patches, grid, in_a_row=self.in_a_row)[-1]
