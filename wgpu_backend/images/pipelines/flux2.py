"""FLUX.2 Klein, distilled and base: Black Forest Labs 2026; pictures of texts, and edited ones."""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import NDArray

import wgpu_backend.array as wx
from wgpu_backend.images import pictures
from wgpu_backend.images.folder import PipelineFolder
from wgpu_backend.images.pipelines import register
from wgpu_backend.images.pipelines.flow import FlowPipeline
from wgpu_backend.images.pipelines.latent import apply_guidance, twice
from wgpu_backend.images.pipelines.pipeline import Conditions
from wgpu_backend.images.requests import Draw, Request
from wgpu_backend.images.schedulers import Schedule, klein_mu

AREA = 1024 * 1024  # most pixels of a picture that is looked at


@register("Flux2KleinPipeline")
class Flux2Klein(FlowPipeline):
    """FLUX.2 Klein: Qwen3's states behind three layers, and pictures to look at as more tokens.

    Attributes
    ----------
    text_layers : tuple of int
        Behind which the states of the text are read.
    """

    steps: ClassVar[int] = 50
    guidance: ClassVar[float] = 4.0
    native: ClassVar[int] = 64

    def __init__(self, folder: PipelineFolder) -> None:
        super().__init__(folder)
        self.text_layers: tuple[int, ...] = (9, 18, 27)
        self.is_distilled = folder.index.flag("is_distilled", default=False)

    def count_steps(self, request: Request) -> int:
        """How many steps there are: few by default, where the network is distilled."""
        return request.num_inference_steps or (4 if self.is_distilled else self.steps)

    def get_mu(self, request: Request, steps: int) -> float:
        """How much sigmas are shifted."""
        rows, columns = self.get_grid(request)
        return klein_mu(rows * columns, steps)

    def starts_from_image(self, request: Request) -> bool:
        """Pictures are looked at."""
        return False

    def picture_size(self, request: Request) -> tuple[int, int]:
        """Height and width; those of the last picture that is looked at."""
        side = self.default_side()
        given = _list_images(request)
        if not given:
            return self.choose_size(request, (side, side))
        width, height = self._fitting(given[-1]).size
        return self.choose_size(request, (height, width))

    def begin(
        self, request: Request, schedule: Schedule, draw: Draw
    ) -> tuple[wx.Array, Conditions]:
        """First latents, and tokens of the pictures that are looked at."""
        height, width = self.picture_size(request)
        factor = self.vae.factor
        shape = (1, self.vae.channels, height // factor, width // factor)
        noise = self._first_noise(request, shape, draw)
        seen = [
            self.encode_mean(pictures.encoder_input(self._fitting(p)))
            for p in _list_images(request)
        ]
        conditions = self._texts(request, [(x.shape[1], x.shape[2]) for x in seen])
        if seen:
            rows = [x.reshape(1, x.shape[1] * x.shape[2], x.shape[3]) for x in seen]
            conditions["seen"] = wx.concat(rows, axis=1)
        return noise * schedule.initial_scale, conditions

    def _fitting(self, source: pictures.Source) -> Any:  # noqa: ANN401  Pillow's image
        """A picture of at most `AREA` and of sides that fit."""
        picture = pictures.limit_area(pictures.load_picture(source), AREA)
        width, height = pictures.floor_size(picture.size, self.multiple)
        return pictures.resize(picture, width, height, "crop")

    def conditions(self, request: Request) -> Conditions:
        """None: places depend on pictures that are looked at, see `begin`."""
        self.require_no_negative(request)
        return {}

    def _texts(self, request: Request, seen: list[tuple[int, int]]) -> Conditions:
        """The prompt, behind an empty one where there is guidance, and places of all tokens."""
        length = request.max_sequence_length or self.words
        scale = self.get_guidance(request)
        is_guided = scale > 1 and not self.is_distilled
        texts = ["", request.prompt] if is_guided else [request.prompt]
        grids = [self.get_grid(request), *seen]
        found = {
            "text": wx.concat([self._encode_text(text, length) for text in texts]),
            "rope": wx.array(self.networks["transformer"].rope(grids, length)),
        }
        return {**found, "guidance": wx.array([scale], "f32")} if is_guided else found

    def _encode_text(self, text: str, length: int) -> wx.Array:
        """States (1, length, width) of a text, padding among them."""
        tokenizer = self.tokenizers["tokenizer"]
        tokens = tokenizer.batch([tokenizer.chat(text, enable_thinking=False)], length)
        mask: NDArray[Any] = tokens.mask[0]
        states = self.networks["text_encoder"](tokens.ids[0], mask)
        return wx.concat([states[layer] for layer in self.text_layers], axis=-1)

    def predict(self, x: wx.Array, timestep: wx.Array, conditions: Conditions) -> wx.Array:
        """Velocity of latents, after guidance."""
        _, height, width, channels = x.shape
        tokens = x.reshape(1, height * width, channels)
        if "seen" in conditions:
            tokens = wx.concat([tokens, conditions["seen"]], axis=1)
        output = self.networks["transformer"](
            twice(tokens, conditions), timestep / 1000.0, conditions["text"], conditions["rope"]
        )
        return apply_guidance(output, conditions)[:, : height * width].reshape(x.shape)


def _list_images(request: Request) -> list[pictures.Source]:
    """Pictures that are looked at."""
    if request.image is None:
        return []
    return list(request.image) if isinstance(request.image, list | tuple) else [request.image]  # pyright: ignore
