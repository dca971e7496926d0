"""A reader of pictures from files, bytes and arrays: upright, in RGB, 8 bits per channel.

Only the first frame of an animation is read. Transparent pictures get a white background.
"""

from __future__ import annotations

import io
import math
import os
import re
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray
from PIL import Image, ImageCms, ImageOps

from wgpu_backend.errors import MediaError
from wgpu_backend.files.native_messages import discard_messages

Source = str | os.PathLike[str] | bytes | Image.Image | NDArray[Any]
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MAX_PIXELS = 1 << 26
"""The most pixels of an image: in RGB they take 200 MB."""
MAX_SIDE = 1 << 16
"""The longest side of an image, in pixels; filters of longer ones take gigabytes."""
MAX_FRAMES = 768
"""The most frames of a video: as many as Qwen's processors sample."""
MAX_FRAME_PIXELS = 1 << 28
"""The most pixels of a video: in RGB they take 800 MB."""
MAX_DECODED_PIXELS = 1 << 30
"""The most pixels of an animation's frames, or of a JPEG's scans, sampled or not.

They take some ten seconds.
"""
_ANIMATIONS = ("GIF", "WEBP", "PNG")
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
# libtiff prints the file or the function and a sentence about damage that Pillow reports.
_CHATTER = re.compile(rb"^[\w.]+: [^\n]*\.\n", re.MULTILINE)
# Milliseconds.
_NO_DURATION = 100.0
_WHITE = (255, 255, 255)


class Picture(NDArrayOperatorsMixin):
    """A picture that acts as the array of its pixels, (height, width, 3), u8.

    Pillow has four bytes for a pixel, so that unpacking takes about as long as decoding a JPEG. The
    array is made when something other than `rescale` needs it.

    Parameters
    ----------
    image : PIL.Image.Image
        In RGB.
    """

    def __init__(self, image: Image.Image) -> None:
        self.shape = (image.height, image.width, 3)
        self._image = image

    @cached_property
    def pixels(self) -> NDArray[np.uint8]:
        """The pixels: (height, width, 3)."""
        return np.asarray(self._image)

    def rescale(self, height: int, width: int, how: Image.Resampling) -> NDArray[np.uint8]:
        """Return the pixels resized with a filter of Pillow."""
        return np.asarray(self._image.resize((width, height), how))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the pixels to NumPy."""
        return np.array(self.pixels, dtype, copy=copy)

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **options: Any) -> Any:  # noqa: ANN401
        """Apply a function of NumPy to the pixels."""
        own = (each.pixels if isinstance(each, Picture) else each for each in given)
        return getattr(ufunc, method)(*own, **options)

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401
        """Return part of the pixels."""
        return self.pixels[key]

    def __len__(self) -> int:
        """Return the height."""
        return self.shape[0]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return another attribute of the array."""
        return getattr(self.pixels, name)


def read_picture(source: Source) -> NDArray[np.uint8]:
    """Read a picture as a `Picture`, which acts as an array. Errors are those of `load_picture`."""
    return cast("NDArray[np.uint8]", Picture(load_picture(source)))


def read_pixels(source: Source) -> NDArray[np.uint8]:
    """Return the pixels of a picture: (height, width, 3). Errors are those of `load_picture`."""
    return np.asarray(load_picture(source))


def read_frames(source: object, fps: float = 2.0) -> list[NDArray[np.uint8]]:
    """Return the frames of a video: (height, width, 3) each.

    Parameters
    ----------
    source : sequence of what `load_picture` takes, (frames, height, width, 3), path or bytes
        Pictures; a folder of them, in the order of their names; or an animated GIF, WebP or PNG.
    fps : float
        Frames in a second, at which an animation is sampled from its first frame on. Of a list,
        all pictures are taken.

    Raises
    ------
    MediaError
        It is none of these, it is empty or too long, its pictures differ in size, or one cannot be
        read.
    """
    if isinstance(source, bytes):
        return _sample_animation(f"video of {len(source)} bytes", source, fps)
    if isinstance(source, str | os.PathLike):
        name = os.fspath(cast("str | os.PathLike[str]", source))
        try:
            source = list_pictures(Path(name)) if Path(name).is_dir() else Path(name).read_bytes()
        except OSError as error:
            raise MediaError(f"{name}: {error.strerror or error}") from None
        except ValueError as error:
            raise MediaError(f"video {name[:80]!r}: {error}") from None
        if isinstance(source, bytes):
            return _sample_animation(name, source, fps)
    if not isinstance(source, list | tuple | np.ndarray):
        raise MediaError(
            f"video: {type(source).__name__}, needs a list of pictures, their folder or a GIF"
        )
    listed = cast("Sequence[Source]", source)
    if not 0 < len(listed) <= MAX_FRAMES:
        raise MediaError(f"video: {len(listed)} frames, needs 1 to {MAX_FRAMES}; leave out some")
    frames: list[NDArray[np.uint8]] = []
    for number, each in enumerate(listed):
        frame = read_pixels(each)
        height, width = frame.shape[:2]
        if frames and frame.shape != frames[0].shape:
            first = frames[0].shape
            raise MediaError(
                f"video: frame {number} has {width} x {height} pixels, frame 0 has {first[1]} x "
                f"{first[0]}; needs frames of one size"
            )
        _require_frames(len(listed), (width, height))
        frames.append(frame)
    return frames


def list_pictures(folder: Path) -> list[Path]:
    """Return the files of a folder with a picture's suffix, sorted by name.

    Raises
    ------
    MediaError
        There is none.
    """
    found = sorted(each for each in folder.iterdir() if each.suffix.lower() in _SUFFIXES)
    if not found:
        raise MediaError(f"{folder}: has no pictures, needs {', '.join(_SUFFIXES)}")
    return found


def _require_frames(count: int, size: tuple[int, int]) -> None:
    """Raise if a video has too many pixels."""
    if size[0] * size[1] * count > MAX_FRAME_PIXELS:
        raise MediaError(
            f"video: {count} frames of {size[0]} x {size[1]} pixels, at most "
            f"{MAX_FRAME_PIXELS} pixels are read; make them smaller or fewer"
        )


def _sample_animation(name: str, data: bytes, fps: float) -> list[Any]:
    """Return the frames that an animation shows at equal intervals."""
    try:
        with warnings.catch_warnings():
            # Pillow warns about large images; the size is checked below.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=_ANIMATIONS) as image:
                return _sample(name, image, fps)
    except MediaError:
        raise
    except Image.UnidentifiedImageError:
        raise MediaError(
            f"{name}: not an animated {', '.join(_ANIMATIONS)}; make a folder of frames, as "
            "`ffmpeg -i FILE -vf fps=2 %04d.jpg` does"
        ) from None
    # Decoders raise many kinds of errors for damaged files.
    except Exception as error:
        raise MediaError(f"{name}: damaged animation: {str(error)[:120]}") from None


def _sample(name: str, image: Image.Image, fps: float) -> list[Any]:
    _require_size(name, image.size)
    frames: list[Any] = []
    seconds = 0.0
    for number in range(getattr(image, "n_frames", 1)):
        # Small files may have any number of large frames, most of which are not sampled.
        if (number + 1) * image.width * image.height > MAX_DECODED_PIXELS:
            raise MediaError(
                f"{name}: more than {number} frames of {image.width} x {image.height} pixels, at "
                f"most {MAX_DECODED_PIXELS} pixels are decoded; make it smaller or shorter"
            )
        image.seek(number)
        image.load()
        # In milliseconds. Browsers show frames of no duration so long.
        seconds += (float(image.info.get("duration") or 0) or _NO_DURATION) / 1e3
        count = max(math.ceil(seconds * fps - 1e-9), 1) - len(frames)
        if len(frames) + count > MAX_FRAMES:
            raise MediaError(
                f"{name}: more than {MAX_FRAMES} frames at {fps:g} a second; use a smaller fps"
            )
        if count > 0:
            _require_frames(len(frames) + count, image.size)
            frames += [np.asarray(_convert(image, "RGB"))] * count
    return frames


def load_picture(source: Source) -> Image.Image:
    """Load an image in RGB, upright, with a white background where it is transparent.

    Parameters
    ----------
    source : path, bytes, Pillow image or array
        Arrays are (height, width) or (height, width, channels), with 1, 3 or 4 channels: u8, or
        floats from 0 to 1.

    Raises
    ------
    MediaError
        There is no image, or it is damaged or too large.
    """
    return _convert(_upright(source), "RGB")


def load_mask(source: Source) -> Image.Image:
    """Load a greyscale mask, white where to paint. Errors are those of `load_picture`."""
    return _convert(_upright(source), "L")


def load_clear_mask(data: bytes) -> Image.Image | None:
    """Load a mask that is white where an image is transparent; None for opaque images.

    Errors are those of `load_picture`.
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
        raise MediaError(
            f"picture: {type(source).__name__}, needs a path, bytes, Pillow's image or an array"
        )
    if isinstance(source, bytes):
        return _decode(f"picture of {len(source)} bytes", io.BytesIO(source))
    try:
        with Path(source).open("rb") as file:
            return _decode(os.fspath(source), file)
    except OSError as error:
        raise MediaError(f"{os.fspath(source)}: {error.strerror or error}") from None
    except ValueError as error:
        raise MediaError(f"picture {os.fspath(source)[:80]!r}: {error}") from None


def _decode(name: str, file: BinaryIO) -> Image.Image:
    try:
        with warnings.catch_warnings():
            # Pillow warns about large images, whose size is checked below, and about damaged tags.
            warnings.simplefilter("ignore")
            # Only these formats: Pillow starts a program for some others, such as EPS.
            image = Image.open(file, formats=_FORMATS)
            _require_size(name, image.size)
            if image.format in ("JPEG", "MPO"):
                _require_scans(name, file, image.size)
            with discard_messages(_CHATTER) if image.format == "TIFF" else nullcontext():
                image.load()
            # In place, since an upright image would be copied.
            ImageOps.exif_transpose(image, in_place=True)
            return image
    except MediaError:
        raise
    except Image.UnidentifiedImageError:
        raise MediaError(f"{name}: not an image, needs {', '.join(_FORMATS)}") from None
    except Image.DecompressionBombError:
        raise MediaError(f"{name}: image too large, needs at most {MAX_PIXELS} pixels") from None
    # Decoders raise many kinds of errors for damaged files.
    except Exception as error:
        raise MediaError(f"{name}: damaged image: {str(error)[:120]}") from None


def _require_size(name: str, size: tuple[int, int]) -> None:
    width, height = size
    if not 0 < width * height <= MAX_PIXELS:
        raise MediaError(f"{name}: {width} x {height} pixels, needs 1 to {MAX_PIXELS}")
    if max(size) > MAX_SIDE:
        raise MediaError(f"{name}: {width} x {height} pixels, needs sides of at most {MAX_SIDE}")


def _require_scans(name: str, file: BinaryIO, size: tuple[int, int]) -> None:
    """Raise if a JPEG has many scans, each of which takes time for all pixels but few bytes.

    Published files have ten. A thumbnail in the file counts, too.
    """
    place = file.tell()
    file.seek(0)
    # Compressed data has a zero after each byte of ones, so this is a marker (ITU T.81, B.1.1.5).
    scans = file.read().count(b"\xff\xda")
    file.seek(place)
    if scans * size[0] * size[1] > MAX_DECODED_PIXELS:
        raise MediaError(
            f"{name}: {scans} scans of {size[0]} x {size[1]} pixels, at most {MAX_DECODED_PIXELS} "
            "pixels are decoded; save it again"
        )


def _from_array(values: NDArray[Any]) -> Image.Image:
    channels = values.shape[2] if values.ndim == 3 else 1
    if values.ndim not in (2, 3) or channels not in (1, 3, 4):
        raise MediaError(
            f"picture: an array of shape {values.shape}, needs height, width and 1, 3 or 4 channels"
        )
    _require_size("picture", (values.shape[1], values.shape[0]))
    if values.dtype == np.bool:
        values = values.astype(np.uint8) * 255
    if values.dtype != np.uint8:
        values = to_bytes(values)
    return Image.fromarray(values[:, :, 0] if values.ndim == 3 and channels == 1 else values)


def _convert(image: Image.Image, mode: str) -> Image.Image:
    """Convert an image to another mode, with a white background where it is transparent.

    Raises
    ------
    MediaError
        Pillow cannot convert it.
    """
    try:
        flat = _flat(image)
        return flat if flat.mode == mode else flat.convert(mode)
    except (ValueError, OSError, ImageCms.PyCMSError) as error:
        raise MediaError(f"picture of mode {image.mode}: {error}, needs RGB") from None


def _flat(image: Image.Image) -> Image.Image:
    """Remove transparency, and reduce to 8 bits per channel."""
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


def to_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Convert floats from 0 to 1 to bytes.

    Raises
    ------
    MediaError
        The values are not floats, or some are NaN.
    """
    if values.dtype.kind != "f":
        raise MediaError(f"picture: an array of {values.dtype}, needs uint8 or floats from 0 to 1")
    bad = int(np.isnan(values).sum())
    if bad:
        raise MediaError(f"picture: {bad} of {values.size} values are NaN, needs 0 to 1")
    return np.round(np.clip(values, 0, 1) * 255).astype(np.uint8)
