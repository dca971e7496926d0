"""Image requests, on their way to the process that serves them, and its results.

Input images follow the message as PNG, arrays as NumPy files. Unlike a pickle, neither can name
code to run.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import OptionError

Plain = dict[str, Any]
_PNG_MODES = {"1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA"}


@dataclass(frozen=True, slots=True, eq=False)
class ImageRequest:
    """A request for images.

    Parameters
    ----------
    name : str
        Name of the model, as in the request.
    folder : str
        Folder of its pipeline.
    options : mapping
        Arguments of `Pipeline.generate`.
    """

    name: str
    folder: str
    prompt: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ImageResult:
    """The result of an image request.

    Parameters
    ----------
    steps : int
        Steps of each image.
    """

    pngs: list[bytes]
    steps: int


def image_request_to_plain(order: ImageRequest) -> tuple[Plain, bytes]:
    """Return an image request as plain data and bytes.

    Raises
    ------
    OptionError
        An option cannot be sent to another process.
    """
    plain, parts, pieces = Plain(), list[list[object]](), list[bytes]()
    for name, value in order.options.items():
        piece = _encode_piece(value)
        if piece is not None:
            parts.append([name, piece[0], len(piece[1])])
            pieces.append(piece[1])
        elif value is None or isinstance(value, str | int | float):
            plain[name] = value
        else:
            raise OptionError(f"{name} is {type(value).__name__}, which a server cannot send on")
    named = {"name": order.name, "folder": order.folder, "prompt": order.prompt}
    return {**named, "options": plain, "parts": parts}, b"".join(pieces)


def parse_image_request(plain: Plain, raw: bytes) -> ImageRequest:
    """Build an image request from plain data."""
    options, begin = dict(plain["options"]), 0
    for name, kind, nbytes in plain["parts"]:
        piece = raw[begin : begin + nbytes]
        options[name] = np.load(io.BytesIO(piece)) if kind == "array" else piece
        begin += nbytes
    return ImageRequest(plain["name"], plain["folder"], plain["prompt"], options)


def _encode_piece(value: object) -> tuple[str, bytes] | None:
    """Return the kind and the bytes of a value that JSON cannot hold; None for other values."""
    # Import Pillow late: most servers never generate images.
    from PIL import Image

    if isinstance(value, bytes):
        return "picture", value
    if isinstance(value, Image.Image):
        return "picture", _encode_png(value)
    if isinstance(value, np.ndarray):
        values, out = cast("NDArray[Any]", value), io.BytesIO()
        if values.dtype.hasobject:
            return None
        # Object arrays would need a pickle.
        np.save(out, values, allow_pickle=False)
        return "array", out.getvalue()
    return None


def _encode_png(image: Any) -> bytes:  # noqa: ANN401  Pillow's, see above
    from PIL import ImageOps

    # The metadata with the orientation is not sent, so it is applied here.
    upright, out = ImageOps.exif_transpose(image), io.BytesIO()
    if upright.mode not in _PNG_MODES:
        upright = upright.convert("RGBA" if upright.has_transparency_data else "RGB")
    upright.save(out, "PNG", compress_level=1)
    return out.getvalue()
