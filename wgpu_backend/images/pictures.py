"""Image files: reading, resizing to the size a network takes, and writing with metadata.

A picture here is a Pillow image in RGB, a mask one in grey values. Networks take arrays in f32,
channels before rows.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageOps, PngImagePlugin

from wgpu_backend.errors import OptionError

F32s = NDArray[np.float32]
Source = str | os.PathLike[str] | bytes | Image.Image | NDArray[Any]
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MAX_PIXELS = 1 << 26
"""The most pixels of an image that is read: a larger one would take 200 MB and more."""
_WHITE = (255, 255, 255)


def load_picture(source: Source) -> Image.Image:
    """Load an image in RGB, upright, with a white background where it is transparent.

    Parameters
    ----------
    source : path, bytes, Pillow image or array
        Arrays are (height, width) or (height, width, channels), with 1, 3 or 4 channels: u8, or
        floats from 0 to 1.

    Raises
    ------
    OptionError
        There is no image, or it is damaged or too large.
    """
    return _convert(_upright(source), "RGB")


def load_mask(source: Source) -> Image.Image:
    """Load a mask in grey values, white where to paint; raises as `load_picture`."""
    return _convert(_upright(source), "L")


def load_clear_mask(data: bytes) -> Image.Image | None:
    """Load a mask that is white where an image is transparent; None for opaque images.

    Raises as `load_picture`.
    """
    image = _upright(data)
    if not _is_transparent(image):
        return None
    return ImageOps.invert(_in_rgba(image).getchannel("A"))


def _upright(source: Source) -> Image.Image:
    if isinstance(source, np.ndarray):
        return _from_array(source)
    if isinstance(source, Image.Image):
        _require_size("picture", source.size)
        return ImageOps.exif_transpose(source)
    if not isinstance(source, str | bytes | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionError(
            f"picture: {type(source).__name__}, needs a path, bytes, Pillow's image or an array"
        )
    if isinstance(source, bytes):
        return _decode(f"picture of {len(source)} bytes", io.BytesIO(source))
    try:
        with Path(source).open("rb") as file:
            return _decode(os.fspath(source), file)
    except OSError as error:
        raise OptionError(f"{os.fspath(source)}: {error.strerror or error}") from None
    except ValueError as error:
        raise OptionError(f"picture {os.fspath(source)[:80]!r}: {error}") from None


def _decode(name: str, file: Any) -> Image.Image:  # noqa: ANN401  a file, or bytes as one
    try:
        with warnings.catch_warnings():
            # Pillow warns of large images, whose size is checked below.
            warnings.simplefilter("ignore")
            # Only these formats: Pillow starts a program for some others, such as EPS.
            image = Image.open(file, formats=_FORMATS)
        _require_size(name, image.size)
        image.load()
        return ImageOps.exif_transpose(image)
    except OptionError:
        raise
    except Image.UnidentifiedImageError:
        raise OptionError(f"{name}: not an image, needs {', '.join(_FORMATS)}") from None
    except Image.DecompressionBombError:
        raise OptionError(
            f"{name}: image too large, at most {MAX_PIXELS} pixels are read"
        ) from None
    # Decoders raise many kinds of errors for damaged files.
    except Exception as error:
        raise OptionError(f"{name}: damaged image: {str(error)[:120]}") from None


def _require_size(name: str, size: tuple[int, int]) -> None:
    width, height = size
    if not 0 < width * height <= MAX_PIXELS:
        raise OptionError(f"{name}: {width} x {height} pixels, needs 1 to {MAX_PIXELS}")


def _from_array(values: NDArray[Any]) -> Image.Image:
    channels = values.shape[2] if values.ndim == 3 else 1
    if values.ndim not in (2, 3) or channels not in (1, 3, 4):
        raise OptionError(
            f"picture: an array of shape {values.shape}, needs height, width and 1, 3 or 4 channels"
        )
    _require_size("picture", (values.shape[1], values.shape[0]))
    if values.dtype == np.bool:
        values = values.astype(np.uint8) * 255
    if values.dtype != np.uint8:
        values = _to_bytes(values)
    return Image.fromarray(values[:, :, 0] if values.ndim == 3 and channels == 1 else values)


def _convert(image: Image.Image, mode: str) -> Image.Image:
    """Convert an image to another mode, with a white background where it is transparent.

    Raises
    ------
    OptionError
        Pillow cannot convert it.
    """
    try:
        return _flat(image).convert(mode)
    except (ValueError, OSError, ImageCms.PyCMSError) as error:
        raise OptionError(f"picture of mode {image.mode}: {error}, needs RGB") from None


def _flat(image: Image.Image) -> Image.Image:
    """Remove transparency, and reduce to eight bits a channel."""
    if image.mode.startswith("I;16") or image.mode == "I":
        # Values of 16 bits; Pillow would clip them.
        return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    if image.mode == "LAB":
        return _from_lab(image)
    if not _is_transparent(image):
        return image
    image = _in_rgba(image)
    ground = Image.new("RGBA", image.size, (*_WHITE, 255))
    return Image.alpha_composite(ground, image)


def _is_transparent(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info


def _in_rgba(image: Image.Image) -> Image.Image:
    """Convert an image to RGBA; Pillow converts ``La`` only via ``LA``."""
    return (image.convert("LA") if image.mode == "La" else image).convert("RGBA")


def _from_lab(image: Image.Image) -> Image.Image:
    """Convert an image in CIE L*a*b* to sRGB, for which Pillow needs profiles."""
    cms = cast("Any", ImageCms)
    profiles = cms.createProfile("LAB"), cms.createProfile("sRGB")
    return cms.profileToProfile(image, *profiles, outputMode="RGB")


def resize(picture: Image.Image, width: int, height: int, how: str = "stretch") -> Image.Image:
    """Resize an image with Lanczos' filter.

    Parameters
    ----------
    how : str
        ``stretch`` changes the proportions; ``crop`` keeps the centre; ``fit`` keeps the whole
        image, on black.

    Raises
    ------
    OptionError
        `how` has another value.
    """
    if how not in ("stretch", "crop", "fit"):
        raise OptionError(f"resize is {how!r}, needs stretch, crop or fit")
    if how == "stretch":
        if picture.size == (width, height):
            return picture
        return picture.resize((width, height), Image.Resampling.LANCZOS)
    wide = picture.width * height > picture.height * width
    if wide == (how == "crop"):
        inner = (max(picture.width * height // picture.height, 1), height)
    else:
        inner = (width, max(picture.height * width // picture.width, 1))
    made = Image.new(picture.mode, (width, height))
    scaled = picture.resize(inner, Image.Resampling.LANCZOS)
    made.paste(scaled, (width // 2 - inner[0] // 2, height // 2 - inner[1] // 2))
    return made


def centre(picture: Image.Image, width: int, height: int) -> Image.Image:
    """Crop the centre of an image."""
    left, top = (picture.width - width) // 2, (picture.height - height) // 2
    return picture.crop((left, top, left + width, top + height))


def floor_size(size: tuple[int, int], multiple: int) -> tuple[int, int]:
    """Round width and height down to multiples.

    Raises
    ------
    OptionError
        Width or height is smaller than `multiple`.
    """
    width, height = (side - side % multiple for side in size)
    if not width or not height:
        raise OptionError(f"picture: {size[0]} x {size[1]} pixels, needs {multiple} a side")
    return width, height


def fit_area(size: tuple[int, int], area: int, multiple: int) -> tuple[int, int]:
    """Return the size with these proportions and about this area.

    Each side is a multiple of `multiple`. Used by Qwen-Image-Edit.
    """
    ratio = size[0] / size[1]
    width = (area * ratio) ** 0.5
    sides = (round(side / multiple) * multiple for side in (width, width / ratio))
    width, height = (max(side, multiple) for side in sides)
    return width, height


def limit_area(picture: Image.Image, area: int) -> Image.Image:
    """Shrink an image that has more pixels than `area`: FLUX.2."""
    if picture.width * picture.height <= area:
        return picture
    scale = (area / (picture.width * picture.height)) ** 0.5
    width, height = (max(int(side * scale), 1) for side in picture.size)
    return resize(picture, width, height)


def encoder_input(picture: Image.Image) -> F32s:
    """Return the input of an autoencoder's encoder: (1, 3, height, width), from -1 to 1."""
    values = np.asarray(picture.convert("RGB"), np.float32) / np.float32(255)
    return np.ascontiguousarray((values * 2 - 1).transpose(2, 0, 1)[None])


def mask_input(mask: Image.Image) -> F32s:
    """Return a mask as (1, 1, height, width): 1 where it is at least half white, else 0."""
    values = np.asarray(mask.convert("L"), np.float32) / np.float32(255)
    return (values >= 0.5).astype(np.float32)[None, None]


def latent_mask(mask: F32s, height: int, width: int) -> F32s:
    """Resize a mask to the size of latents, by the value at each latent's upper left."""
    rows = np.arange(height) * mask.shape[2] // height
    columns = np.arange(width) * mask.shape[3] // width
    return mask[:, :, rows][:, :, :, columns]


def to_picture(values: NDArray[Any]) -> Image.Image:
    """Convert an array to an image.

    Parameters
    ----------
    values : (height, width, 3), floats
        Values are clipped to 0 to 1.

    Raises
    ------
    OptionError
        The shape differs, or there are NaNs.
    """
    if values.ndim != 3 or values.shape[2] != 3:
        raise OptionError(f"picture: an array of shape {values.shape}, needs (height, width, 3)")
    return Image.fromarray(_to_bytes(values))


def _to_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    if values.dtype.kind != "f":
        raise OptionError(f"picture: an array of {values.dtype}, needs uint8 or floats from 0 to 1")
    bad = int(np.isnan(values).sum())
    if bad:
        raise OptionError(f"picture: {bad} of {values.size} values are NaN")
    return np.round(np.clip(values, 0, 1) * 255).astype(np.uint8)


def png_bytes(picture: Image.Image, made_by: Mapping[str, object] | None = None) -> bytes:
    """Encode an image as PNG.

    Parameters
    ----------
    made_by : Mapping, optional
        Metadata such as ``prompt``, ``seed``, ``steps`` and ``model``, each written as a text chunk
        of its name; None is left out.
    """
    texts = PngImagePlugin.PngInfo()
    for name, value in (made_by or {}).items():
        if value is not None:
            texts.add_itxt(name, str(value))
    out = io.BytesIO()
    picture.save(out, "PNG", pnginfo=texts)
    return out.getvalue()


def save_png(
    picture: Image.Image,
    path: str | os.PathLike[str],
    made_by: Mapping[str, object] | None = None,
) -> None:
    """Write a PNG atomically.

    Raises
    ------
    OptionError
        The name does not end in .png, or the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise OptionError(f"{path}: images are written as PNG, needs a name that ends in .png")
    # Written under another name and renamed, so that no partial image is left.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(png_bytes(picture, made_by))
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OptionError(f"{path}: {error.strerror or error}") from None


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read the metadata of a PNG that `save_png` wrote; raises as `load_picture`."""
    try:
        with Image.open(path, formats=("PNG",)) as image:
            image.load()
            texts = getattr(image, "text", {})
    except (OSError, SyntaxError, ValueError) as error:
        raise OptionError(f"{os.fspath(path)}: not a PNG: {str(error)[:120]}") from None
    return {name: str(text) for name, text in texts.items()}
