"""Sizes, tiles and values of pictures are those of transformers' processors.

Sizes are recorded by `tests/data/make_vision_sizes.py`, digests of bytes and values with
torchvision 0.29 and transformers 5.24. Pillow's own filters are not recorded: their last bit
depends on Pillow's version.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wgpu_backend.errors import OptionError
from wgpu_backend.files.media.pictures import Picture, read_picture, read_pixels
from wgpu_backend.nn.vision import processing
from wgpu_backend.nn.vision.processing import Filter

SIZES = json.loads((Path(__file__).parents[2] / "data/vision_sizes.json").read_text())
PINPOINTS = [(56, 112), (112, 56), (112, 112), (168, 56), (56, 168)]


def _llava(size):
    best = processing.find_pinpoint(size, PINPOINTS)
    return [1 + best[0] * best[1] // 56**2]


def _idefics(size):
    height, width = processing.fit_tiles(processing.fit_longest(size, 168), 56)
    count = height * width // 56**2
    return [count + (count > 1)]


def _internvl(size):
    rows, columns = processing.find_grid(size, (56, 56), 1, 12)
    return [rows * columns + (rows * columns > 1)]


def _lfm2(size):
    whole = list(processing.fit_tokens(size, 32, 64, 256))
    if not processing.is_large(size, 32, 16, 256 * 32**2 * 2.0):
        return [whole]
    rows, columns = processing.find_grid(size, (512, 512), 2, 10)
    return [rows * columns, whole]


def _mllama(size):
    return [processing.list_mllama_grids(4).index(processing.fit_mllama(size, 56, 4)[0]) + 1]


FUNCTIONS = {
    "llava-1.6": _llava,
    "idefics3": _idefics,
    "pixtral": lambda size: [*processing.fit_patches(size, 448, 14)],
    "internvl3": _internvl,
    "lfm2-vl": _lfm2,
    "llama4": lambda size: [*processing.fit_llama4(size, 56, 9)[0]],
    "glm-4v": lambda size: [*processing.fit_frames(size, 28, 16 * 784, 8192 * 784)],
    "gemma4": lambda size: [*processing.fit_budget(size, 16, 3, 70)],
    "muse-glimmer": lambda size: [*processing.fit_proportions(size, 28, 60)],
    "mllama": _mllama,
    "qwen2-vl": lambda size: [*processing.fit_pixels(size, 28, 8 * 784, 4096 * 784)],
    "qwen3-vl": lambda size: [*processing.fit_pixels(size, 32, 8 * 1024, 4096 * 1024)],
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_tiles_are_the_processors(name):
    found = [[w, h, FUNCTIONS[name]((h, w))] for w, h, _ in SIZES[name]]
    assert found == SIZES[name]


def picture(height, width):
    y, x = np.mgrid[:height, :width]
    return np.stack([(x * 7 + y * y) % 256, (x * x + 3 * y) % 256, (x * y) % 256], -1).astype("u1")


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("how", "size", "expected"),
    [
        (Filter.BILINEAR, (21, 60), "54cfb2b4f7bb8449"),
        (Filter.BILINEAR, (40, 30), "84798e5ab2355084"),
        (Filter.BICUBIC, (21, 60), "977a76bc7eb3c847"),
        (Filter.BICUBIC, (40, 30), "53e26dd2c3598df1"),
        (Filter.LANCZOS, (21, 60), "7621c1acda364628"),
        (Filter.LANCZOS, (40, 30), "7ac1a72e7d5ea43f"),
    ],
)
def test_coarse_resizing_is_torchvisions(how, size, expected):
    assert digest(processing.resize_coarsely(picture(37, 53), *size, how)) == expected


@pytest.mark.parametrize("how", [Filter.BILINEAR, Filter.BICUBIC])
def test_pillow_and_coarse_resizing_differ_by_rounding_only(how):
    fine = processing.resize(picture(37, 53), 21, 60, how).astype(int)
    coarse = processing.resize_coarsely(picture(37, 53), 21, 60, how)
    # Pillow may resize columns before rows, which rounds other values in between.
    assert np.abs(fine - coarse).mean() < 0.5


def test_values_are_rounded_as_each_back_end_rounds_them():
    ramp = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, 2)
    statistics = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    pillow = processing.normalise(ramp, *statistics)
    torchvision = processing.normalise_fused(ramp, *statistics)
    half = processing.normalise_half(ramp, (0.5,) * 3, (0.5,) * 3)
    assert digest(pillow.transpose(2, 0, 1)) == "1d8b9af12b7b3918"
    assert digest(torchvision.transpose(2, 0, 1)) == "0fb8c7f771e43b53"
    assert digest(half[..., 0]) == "605c715fb539e9eb"


def test_crops_and_margins_keep_the_picture():
    whole = picture(5, 8)
    assert (processing.crop_centre(whole, (3, 4)) == whole[1:4, 2:6]).all()
    assert (processing.crop_centre(whole, (8, 8))[2:7] == whole).all()
    assert (processing.pad(whole, (7, 9))[:5, :8] == whole).all()
    assert (processing.pad(whole, (8, 9), centred=True)[1:6, :8] == whole).all()
    assert processing.pad(whole, (8, 9), centred=True)[6:].max() == 0


def test_patches_of_a_square_follow_each_other():
    values = np.arange(4 * 8 * 3, dtype=np.float32).reshape(4, 8, 3)
    patches = processing.split_patches(values, 2, merge=2)
    assert patches.shape == (1, 2, 4, 12)
    assert (patches[0, 1, 2].reshape(3, 2, 2) == values[2:4, 4:6].transpose(2, 0, 1)).all()
    last = processing.split_patches(values, 2, merge=2, colours_first=False)
    assert (last[0, 1, 2].reshape(2, 2, 3) == values[2:4, 4:6]).all()


@pytest.mark.parametrize("function", [processing.fit_pixels, processing.fit_frames])
def test_very_uneven_pictures_are_refused(function):
    with pytest.raises(OptionError, match=r"900 x 2 pixels.*ratio of sides of at most 200"):
        function((2, 900), 1, 1, 10**9)


@pytest.mark.parametrize("size", [(1, 7000), (7000, 1), (3, 1000)])
def test_a_shorter_side_is_not_scaled_to_gigabytes(size):
    """A picture of few bytes may be 65,536 times as long as wide."""
    height, width = processing.fit_shortest(size, 96)
    assert (min(height, width), max(height, width)) == (96, 96 * max(size) // min(size))
    long = tuple(side * 12 if side == max(size) else side for side in size)
    if size[0] * size[1] == 7000:
        with pytest.raises(OptionError, match="needs a ratio of sides of at most 7281; crop it"):
            processing.fit_shortest(long, 96)


def test_pixtral_refuses_a_picture_whose_reduced_side_has_no_pixel():
    assert processing.fit_patches((448 * 3, 3), 448, 14) == (448, 14)
    with pytest.raises(OptionError, match=r"picture: 3 x 1345 pixels.* at most 448"):
        processing.fit_patches((448 * 3 + 1, 3), 448, 14)
    assert processing.fit_patches((1, 448), 448, 14) == (14, 448)


# Pictures in place of arrays.

USES = {
    "resize": lambda x: processing.resize(x, 20, 30, Filter.BICUBIC),
    "reduce": lambda x: processing.resize(x, 7, 9, Filter.LANCZOS),
    "same size": lambda x: processing.resize(x, *x.shape[:2]),
    "resize_coarsely": lambda x: processing.resize_coarsely(x, 20, 9),
    "crop_centre": lambda x: processing.crop_centre(x, (20, 50)),
    "pad": lambda x: processing.pad(x, (60, 70), centred=True),
    "pad nothing": lambda x: np.asarray(processing.pad(x, x.shape[:2])),
    "split_tiles": lambda x: np.stack(processing.split_tiles(x, (2, 3))),
    "normalise": lambda x: processing.normalise(x, processing.CLIP_MEAN, processing.CLIP_DEVIATION),
    "scale_unit": processing.scale_unit,
    "arithmetic": lambda x: np.add(x / 255, x[2:3] * np.float32(2)) - 1,
    "attributes": lambda x: np.array([x.ndim, x.size, len(x), *x.mean((0, 1)), x.dtype == "u1"]),
}


@pytest.mark.parametrize("use", USES)
def test_a_picture_acts_as_its_pixels(rng, use):
    pixels = rng.integers(0, 256, (34, 45, 3), np.uint8)
    picture = read_picture(pixels)
    found, wanted = USES[use](picture), USES[use](pixels)
    assert isinstance(found, np.ndarray)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def test_a_picture_is_resized_without_unpacking_its_pixels(rng, tmp_path):
    """Turned upright, and as it was when it was read."""
    pixels = rng.integers(0, 256, (34, 45, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    picture = read_picture(tmp_path / "a.png")
    assert isinstance(picture, Picture)
    assert picture.shape == (45, 34, 3)
    found = processing.resize(picture, 10, 20)
    assert "pixels" not in picture.__dict__
    np.testing.assert_array_equal(found, processing.resize(read_pixels(tmp_path / "a.png"), 10, 20))
    np.testing.assert_array_equal(picture, np.rot90(pixels, 3))
    source = Image.fromarray(pixels)
    picture = read_picture(source)
    source.paste((0, 0, 0), (0, 0, 45, 34))
    np.testing.assert_array_equal(picture, pixels)


@pytest.mark.parametrize("merge", [1, 2])
def test_patches_of_bytes_have_the_values_of_patches_of_floats(rng, merge):
    pixels = rng.integers(0, 256, (24, 36, 3), np.uint8)
    statistics = processing.CLIP_MEAN, processing.CLIP_DEVIATION
    split = processing.split_patches(pixels, 6, merge=merge)
    assert split.dtype == np.uint8
    wanted = processing.split_patches(processing.normalise(pixels, *statistics), 6, merge=merge)
    np.testing.assert_array_equal(processing.normalise_patches(split, *statistics), wanted)
