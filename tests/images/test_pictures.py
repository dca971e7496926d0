"""Pictures in and out: upright, on white, of the wanted size, and damaged ones reported."""

import io
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wgpu_backend.errors import OptionError
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.images import pictures
from wgpu_backend.images.vision_patches import vision_patches

STORED = np.load(Path(__file__).with_name("data") / "pictures.npz")
ORIENTATION = 0x112


def noise(rng, width, height, mode="RGB"):
    channels = len(Image.new(mode, (1, 1)).getbands())
    values = rng.integers(0, 256, (height, width, channels), "u1")
    return Image.fromarray(values[:, :, 0] if channels == 1 else values)


def encoded(image, kind, **given):
    out = io.BytesIO()
    image.save(out, kind, **given)
    return out.getvalue()


# How EXIF's eight orientations store a picture (TIFF 6.0, page 36): what undoes each, in NumPy.
UPRIGHT = {
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: np.rot90(x, 2).swapaxes(0, 1),
    8: lambda x: np.rot90(x),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_pictures_are_turned_upright(rng, orientation):
    image = noise(rng, 5, 3)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    made = pictures.load_picture(encoded(image, "PNG", exif=exif))
    np.testing.assert_array_equal(made, UPRIGHT[orientation](np.asarray(image)))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_is_transparent_becomes_white(rng, mode):
    image = noise(rng, 33, 3, mode)
    *colours, alpha = np.moveaxis(np.float64(image), 2, 0)
    known = np.stack(colours * (3 // len(colours)), 2) * (alpha / 255)[..., None]
    known += 255 * (1 - alpha / 255)[..., None]
    made = pictures.load_picture(encoded(image, "PNG"))
    np.testing.assert_allclose(made, known, atol=1)  # blending rounds to bytes


def test_a_transparent_colour_of_a_palette_becomes_white():
    image = Image.new("P", (2, 1))
    image.putpalette([9, 9, 9, 200, 100, 50])
    image.putpixel((1, 0), 1)
    made = pictures.load_picture(encoded(image, "PNG", transparency=0))
    assert [made.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (200, 100, 50)]


def test_sixteen_bits_become_eight(rng):
    values = rng.integers(0, 65536, (3, 5), "u2")
    made = pictures.load_picture(encoded(Image.fromarray(values), "PNG"))
    np.testing.assert_array_equal(np.asarray(made)[:, :, 0], values >> 8)


@pytest.mark.parametrize("kind", ["path", "bytes", "image", "array", "floats"])
def test_pictures_come_from_anywhere(rng, tmp_path, kind):
    image = noise(rng, 7, 5)
    image.save(tmp_path / "a.png")
    source = {
        "path": tmp_path / "a.png",
        "bytes": encoded(image, "PNG"),
        "image": image,
        "array": np.asarray(image),
        "floats": np.float32(image) / 255,
    }[kind]
    np.testing.assert_array_equal(pictures.load_picture(source), image)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "GIF", "BMP"])
def test_other_formats_are_read(kind):
    made = pictures.load_picture(encoded(Image.new("RGB", (16, 8), (200, 30, 30)), kind))
    assert made.size == (16, 8)
    np.testing.assert_allclose(np.asarray(made)[4, 8], (200, 30, 30), atol=4)  # JPEG is lossy


def huge():
    """A PNG whose header says 100,000 x 100,000 pixels, and has none of them."""

    def chunk(kind, data):
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IEND", b"")


def test_what_is_no_picture_is_told_in_a_line(rng, tmp_path):
    whole = encoded(noise(rng, 40, 40), "PNG")
    jpeg = encoded(noise(rng, 40, 40), "JPEG")
    (tmp_path / "text.png").write_text("no picture")
    for source, message in (
        (tmp_path / "none.png", "none.png: No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "text.png", "text.png: not an image, needs PNG, JPEG"),
        ("a\0b", "null"),
        (b"", "picture of 0 bytes: not an image"),
        (whole[: len(whole) // 2], "damaged image"),
        (jpeg[: len(jpeg) // 2], "damaged image: .*truncated"),
        (huge(), r"image too large|100000 x 100000 pixels, needs 1 to"),
        (np.zeros((3, 3, 2)), r"shape \(3, 3, 2\), needs height, width"),
        (np.zeros((0, 3)), "3 x 0 pixels"),
        (np.zeros((3, 3), int), "array of int64, needs uint8 or floats"),
        (np.full((3, 3), np.nan), "9 of 9 values are NaN, needs 0 to 1"),
    ):
        with pytest.raises(OptionError, match=message) as caught:
            pictures.load_picture(source)
        assert "\n" not in str(caught.value)


def test_encoders_are_given_what_diffusers_gives_them():
    picture = pictures.load_picture(STORED["picture"])
    np.testing.assert_array_equal(pictures.encoder_input(picture), STORED["encoder_input"])


def test_masks_are_what_diffusers_makes_of_them():
    mask = pictures.mask_input(pictures.load_mask(STORED["mask"]))
    masked = pictures.encoder_input(pictures.load_picture(STORED["picture"])) * (mask < 0.5)
    np.testing.assert_array_equal(masked, STORED["masked_input"])
    np.testing.assert_array_equal(pictures.latent_mask(mask, 8, 8), STORED["mask_of_latents"])


def test_what_is_half_white_is_painted():
    values = np.array([[0, 127, 128, 255]], "u1")
    made = pictures.mask_input(pictures.load_mask(values))
    assert made.tolist() == [[[[0, 0, 1, 1]]]]


def test_patches_are_those_of_transformers():
    config = Settings("processor", json.loads(STORED["processor"].tobytes()))
    made, grid = vision_patches(pictures.load_picture(STORED["picture"]), config)
    assert grid == tuple(STORED["grid"][0])
    # Of the same bytes: divisions round in another order.
    np.testing.assert_allclose(made, STORED["patches"], atol=5e-7)


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        ((300, 200), (14, 22)),
        ((33, 257), (18, 2)),
        ((10, 10), (4, 4)),
        ((2, 300), (50, 2)),
        ((2000, 2000), (70, 70)),
    ],
)
def test_patches_of_any_size_are_blocks_of_two(rng, size, grid):
    made, (frames, rows, columns) = vision_patches(noise(rng, *size), Settings("c", {"size": {
        "shortest_edge": 3136, "longest_edge": 1003520}}))  # fmt: skip
    assert (frames, rows, columns) == (1, *grid)
    assert made.shape == (rows * columns, 3 * 2 * 14 * 14)


@pytest.mark.parametrize("how", ["stretch", "crop", "fit"])
@pytest.mark.parametrize("size", [(64, 64), (96, 64), (33, 257), (1, 1)])
def test_resizing_gives_the_size_and_keeps_plain_colours(how, size):
    made = pictures.resize(Image.new("RGB", (50, 20), (9, 99, 200)), *size, how)
    assert made.size == size
    colours = {colour for _, colour in made.getcolors()}
    assert colours <= {(9, 99, 200), (0, 0, 0)}
    assert ((0, 0, 0) in colours) <= (how == "fit")


def test_cropping_keeps_the_middle_and_proportions(rng):
    image = noise(rng, 40, 20)
    made = pictures.resize(image, 20, 20, "crop")
    np.testing.assert_array_equal(made, np.asarray(image)[:, 10:30])
    np.testing.assert_array_equal(pictures.centre(image, 32, 16), np.asarray(image)[2:18, 4:36])


def test_sizes_of_areas():
    assert pictures.fit_area((640, 480), 1024 * 1024, 32) == (1184, 896)
    assert pictures.floor_size((70, 129), 16) == (64, 128)
    assert pictures.limit_area(Image.new("RGB", (400, 100)), 10_000).size == (200, 50)
    assert pictures.limit_area(Image.new("RGB", (40, 10)), 10_000).size == (40, 10)
    with pytest.raises(OptionError, match="15 x 40 pixels, needs at least 16 on each side"):
        pictures.floor_size((15, 40), 16)


def test_png_files_say_what_made_them(rng, tmp_path):
    image = noise(rng, 9, 7)
    said = {"prompt": "日本 ünï\n“x”", "seed": 2**40, "steps": 4, "negative_prompt": None}
    pictures.save_png(image, tmp_path / "a.png", said)
    np.testing.assert_array_equal(pictures.load_picture(tmp_path / "a.png"), image)
    known = {"prompt": "日本 ünï\n“x”", "seed": str(2**40), "steps": "4"}
    assert pictures.read_metadata(tmp_path / "a.png") == known
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_values_become_bytes_as_in_diffusers(rng):
    values = rng.uniform(-0.2, 1.2, (7, 5, 3)).astype("f4")
    made = np.asarray(pictures.to_picture(values))
    np.testing.assert_array_equal(made, np.round(np.clip(values, 0, 1) * 255))


def test_what_cannot_be_written_is_told(rng, tmp_path):
    image = noise(rng, 2, 2)
    for call, message in (
        (lambda: pictures.save_png(image, tmp_path / "a.jpg"), "needs a name that ends in .png"),
        (lambda: pictures.save_png(image, tmp_path / "no/a.png"), "No such file"),
        (lambda: pictures.read_metadata(tmp_path / "no.png"), "not a PNG"),
        (lambda: pictures.to_picture(np.zeros((2, 2))), r"shape \(2, 2\), needs"),
        (lambda: pictures.resize(image, 2, 2, "x"), "resize is 'x'"),
    ):
        with pytest.raises(OptionError, match=message):
            call()


@pytest.mark.parametrize("mode", ["La", "RGBa"])
def test_colours_that_were_multiplied_by_alpha_are_read(rng, mode):
    plain = noise(rng, 9, 5, {"La": "LA", "RGBa": "RGBA"}[mode])
    made = np.asarray(pictures.load_picture(plain.convert(mode)), np.int16)
    # Multiplied and divided again, a faint colour keeps few of its bits.
    assert abs(made - np.asarray(pictures.load_picture(plain), np.int16)).max() <= 2


def test_lab_is_read():
    # CIE 15, D50: these are white, black and the red, green and blue of sRGB.
    known = {
        (100, 0, 0): (255, 255, 255), (0, 0, 0): (0, 0, 0), (54, 81, 70): (255, 0, 0),
        (88, -79, 81): (0, 255, 0), (30, 68, -112): (0, 0, 255),
    }  # fmt: skip
    values = [(round(l * 255 / 100), a + 128, b + 128) for l, a, b in known]  # noqa: E741
    lab = Image.frombytes(
        "LAB", (5, 1), bytes(n ^ (128 if i else 0) for v in values for i, n in enumerate(v))
    )
    made = np.asarray(pictures.load_picture(lab), np.int16)[0]
    assert abs(made - np.array(list(known.values()))).max() <= 26  # a and b are whole numbers
    assert pictures.load_mask(lab).getpixel((0, 0)) >= 250


@pytest.mark.parametrize(
    "mode", ["1", "P", "L", "CMYK", "YCbCr", "HSV", "F", "I", "I;16", "RGBX", "PA"]
)
def test_every_mode_of_pillow_is_read(mode):
    image = Image.new(mode, (3, 2))
    assert pictures.load_picture(image).mode == "RGB"
    assert pictures.load_mask(image).mode == "L"


@pytest.mark.parametrize("given", [5, 2.5, None, [1, 2], {"a": 1}, object(), (3, 4)])
def test_what_is_no_picture_is_told(given):
    with pytest.raises(OptionError, match=f"^picture: {type(given).__name__}, needs a path, bytes"):
        pictures.load_picture(given)


def test_masks_that_are_clear_where_to_paint(rng):
    image = noise(rng, 4, 4, "RGBA")
    made = pictures.load_clear_mask(encoded(image, "PNG"))
    np.testing.assert_array_equal(made, 255 - np.asarray(image)[:, :, 3])
    assert pictures.load_clear_mask(encoded(image.convert("RGB"), "PNG")) is None


@pytest.mark.parametrize("count", [10, 1200])
def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(count):
    """Each takes a few bytes and a decoder's pass over all pixels."""
    data = encoded(Image.new("RGB", (1000, 1000), "#d82323"), "JPEG", progressive=True)
    place = data.rindex(b"\xff\xda")
    data = data[:-2] + data[place:-2] * count + data[-2:]
    if count == 10:
        assert pictures.load_picture(data).getpixel((500, 500))[0] > 200
        return
    with pytest.raises(OptionError, match="1210 scans of 1000 x 1000 pixels, at most 1073741824"):
        pictures.load_picture(data)


@pytest.mark.parametrize("size", [(70_000, 1), (1, 70_000)])
def test_sides_of_pictures_have_a_limit(size):
    with pytest.raises(OptionError, match=f"{size[0]} x {size[1]} pixels, needs sides of at most"):
        pictures.load_picture(encoded(Image.new("L", size), "PNG"))


def test_damage_is_not_printed_by_libtiff(rng, capfd):
    data = encoded(noise(rng, 96, 96), "TIFF", compression="tiff_lzw")
    with pytest.raises(OptionError, match="damaged image"):
        pictures.load_picture(data[:40] + bytes(500) + data[540:])
    assert capfd.readouterr().err == ""
