"""Image files: reading, resizing to the size a network takes, and writing with metadata.

A picture here is a Pillow image in RGB, a mask one in grey values. Networks take arrays in f32,
channels before rows.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from wgpu_backend.errors import OptionError
from wgpu_backend.files.media.pictures import (
    MAX_PIXELS,
    Source,
    load_clear_mask,
    load_mask,
    load_picture,
    to_bytes,
)

__all__ = [
    "MAX_PIXELS",
    "Source",
    "load_clear_mask",
    "load_mask",
    "load_picture",
]
F32s = NDArray[np.float32]


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
        raise OptionError(
            f"picture: {size[0]} x {size[1]} pixels, needs at least {multiple} on each side"
        )
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
    return Image.fromarray(to_bytes(values))


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
    """Read the metadata of a PNG that `save_png` wrote; raises like `load_picture`."""
    try:
        with Image.open(path, formats=("PNG",)) as image:
            image.load()
            texts = getattr(image, "text", {})
    except (OSError, SyntaxError, ValueError) as error:
        raise OptionError(f"{os.fspath(path)}: not a PNG: {str(error)[:120]}") from None
    return {name: str(text) for name, text in texts.items()}
