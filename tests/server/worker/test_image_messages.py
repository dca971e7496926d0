"""Image requests as messages: the receiver reads the same options, or refuses them."""

import json

import numpy as np
import pytest
from PIL import Image

from wgpu_backend.errors import OptionError
from wgpu_backend.images.pictures import load_mask, load_picture
from wgpu_backend.server.worker.image_messages import (
    ImageRequest,
    image_request_to_plain,
    parse_image_request,
)


def there(**options):
    """Options on the other side of a socket."""
    plain, raw = image_request_to_plain(ImageRequest("name", "folder", "prompt", options))
    found = parse_image_request(json.loads(json.dumps(plain)), raw)
    assert (found.name, found.folder, found.prompt) == ("name", "folder", "prompt")
    return found.options


def test_plain_options_bytes_and_arrays_are_the_same():
    values = np.arange(24, dtype=np.float32).reshape(2, 4, 3) / 24
    given = {"seed": 1 << 60, "guidance_scale": 0.1, "image": b"\x00\xff", "negative_prompt": "é"}
    found = there(**given, latents=values, mask_image=values > 0.5, width=None)
    arrays = found.pop("latents"), found.pop("mask_image")
    assert found == {**given, "width": None}
    assert (arrays[0].dtype, arrays[1].dtype) == (np.float32, np.bool)
    assert np.array_equal(arrays[0], values)
    assert np.array_equal(arrays[1], values > 0.5)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_a_picture_of_any_kind_is_read_as_before(mode):
    made = np.random.default_rng(1).integers(0, 256, (6, 5, 4), np.uint8)
    picture = Image.fromarray(made, "RGBA")
    if mode == "I;16":
        picture = Image.fromarray(made[:, :, 0].astype(np.uint16) * 257)
    elif mode != "RGBA":
        picture = (picture if mode == "LA" else picture.convert("RGB")).convert(mode)
    picture.getexif()[0x0112] = 6  # lies on its side
    found = there(image=picture)["image"]
    assert load_picture(found).size == (6, 5)
    for read in (load_picture, load_mask):
        assert read(found).tobytes() == read(picture).tobytes()


@pytest.mark.parametrize("value", [print, [1], np.array([None])])
def test_what_cannot_be_sent_is_refused(value):
    with pytest.raises(OptionError, match=r"latents is .*, which a server cannot send on"):
        there(latents=value)
