"""FLUX.2 Klein, distilled and base (Black Forest Labs 2026): text to image, and editing."""

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
from wgpu_backend.images.schedule import Schedule
from wgpu_backend.images.schedulers import klein_mu

# Most pixels of a reference image.
AREA = 1024 * 1024


@register("Flux2KleinPipeline")
class Flux2Klein(FlowPipeline):
    """FLUX.2 Klein: Qwen3's states after three layers, and reference images as more tokens.

    Attributes
    ----------
    text_layers : tuple of int
        Layers after which the states of the text are taken.
    """

    steps: ClassVar[int] = 50
    guidance: ClassVar[float] = 4.0
    native: ClassVar[int] = 64

    def __init__(self, folder: PipelineFolder, *, exact: bool = False) -> None:
        super().__init__(folder, exact=exact)
        self.text_layers: tuple[int, ...] = (9, 18, 27)
        self.is_distilled = folder.index.flag("is_distilled", default=False)

    def count_steps(self, request: Request) -> int:
        """Return the number of steps: few by default for distilled networks."""
        return request.num_inference_steps or (4 if self.is_distilled else self.steps)

    def get_mu(self, request: Request, steps: int) -> float:
        """Return the shift of sigmas."""
        rows, columns = self.get_grid(request)
        return klein_mu(rows * columns, steps)

    def starts_from_image(self, request: Request) -> bool:
        """Return False: images are references."""
        return False

    def picture_size(self, request: Request) -> tuple[int, int]:
        """Return height and width; by default those of the last reference image."""
        side = self.default_side()
        references = _list_images(request)
        if not references:
            return self.choose_size(request, (side, side))
        width, height = self._fitting(references[-1]).size
        return self.choose_size(request, (height, width))

    def begin(
        self, request: Request, schedule: Schedule, draw: Draw
    ) -> tuple[wx.Array, Conditions]:
        """Return the first latents, and the tokens of reference images."""
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
        """Return the image with at most `AREA` pixels and whole tokens along each side."""
        picture = pictures.limit_area(pictures.load_picture(source), AREA)
        width, height = pictures.floor_size(picture.size, self.multiple)
        return pictures.resize(picture, width, height, "crop")

    def conditions(self, request: Request) -> Conditions:
        """Return nothing: positions depend on reference images, see `begin`."""
        self.require_no_negative(request)
        return {}

    def _texts(self, request: Request, seen: list[tuple[int, int]]) -> Conditions:
        """Return the prompt, after an empty one if guided, and positions of all tokens."""
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
        """Return the states (1, length, width) of a text, padding included."""
        tokenizer = self.tokenizers["tokenizer"]
        tokens = tokenizer.batch([tokenizer.chat(text, enable_thinking=False)], length)
        mask: NDArray[Any] = tokens.mask[0]
        states = self.networks["text_encoder"](tokens.ids[0], mask)
        return wx.concat([states[layer] for layer in self.text_layers], axis=-1)

    def predict(self, x: wx.Array, timestep: wx.Array, conditions: Conditions) -> wx.Array:
        """Return the velocity of latents, after guidance."""
        _, height, width, channels = x.shape
        tokens = x.reshape(1, height * width, channels)
        if "seen" in conditions:
            tokens = wx.concat([tokens, conditions["seen"]], axis=1)
        output = self.networks["transformer"](
            twice(tokens, conditions), timestep / 1000.0, conditions["text"], conditions["rope"]
        )
        return apply_guidance(output, conditions)[:, : height * width].reshape(x.shape)


def _list_images(request: Request) -> list[pictures.Source]:
    """Return the reference images."""
    if request.image is None:
        return []
    return list(request.image) if isinstance(request.image, list | tuple) else [request.image]  # pyright: ignore
