"""A reader of sound files: mono samples at the rate that a model needs.

WAV is read here. FLAC, MP3, Ogg and AIFF need the package soundfile, which includes libsndfile: it
is 1.3 MB, where PyAV with FFmpeg is 36 MB. A file's header is checked before its samples are
decoded, and samples are mixed to mono block by block.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import MediaError
from wgpu_backend.files.native_messages import discard_messages

F32s = NDArray[np.float32]
Source = str | os.PathLike[str] | bytes | NDArray[Any]

RATE = 16_000
"""The sampling rate of speech models, in Hz."""
MAX_BYTES = 1 << 30
"""The largest size of a file, in bytes."""
MAX_SECONDS = 2 * 3600
"""The longest sound: at 48 kHz its samples take 1.4 GB."""
_RATES = (1_000, 768_000)
_MOST_CHANNELS = 64
# Frames that are decoded at a time.
_BLOCK = 1 << 18


@dataclass(frozen=True, slots=True)
class Sound:
    """A sound: mono samples and their rate.

    Parameters
    ----------
    samples : (samples,), f32
        From -1 to 1.
    rate : int
        Samples a second.
    """

    samples: F32s
    rate: int

    @property
    def seconds(self) -> float:
        """Return the duration in seconds."""
        return len(self.samples) / self.rate


def load_sound(source: Source, rate: int = RATE, *, max_seconds: float = MAX_SECONDS) -> F32s:
    """Load a sound as mono samples from -1 to 1 at `rate`: (samples,), f32.

    Parameters
    ----------
    source : path, bytes or array
        A file: WAV, or with the extra ``audio`` FLAC, MP3, Ogg (Vorbis, Opus) or AIFF. An array has
        samples at `rate`: (samples,) or (samples, channels), floats or signed integers.
    rate : int
        Samples a second of the result.
    max_seconds : float
        Longest sound that is read.

    Raises
    ------
    MediaError
        There is no sound, it is damaged, truncated or too long, or its format is not supported.
    """
    if isinstance(source, np.ndarray):
        sound = Sound(_from_array(source), rate)
        _require_seconds("sound", len(sound.samples), rate, max_seconds)
    else:
        sound = read_sound(source, max_seconds=max_seconds)
    return resample(sound.samples, sound.rate, rate)


def read_sound(
    source: str | os.PathLike[str] | bytes, *, max_seconds: float = MAX_SECONDS
) -> Sound:
    """Read a file at its own rate, mixed to mono. Errors are those of `load_sound`."""
    if isinstance(source, bytes):
        name = f"sound of {len(source)} bytes"
        return _read(name, io.BytesIO(source), len(source), max_seconds)
    if not isinstance(source, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise MediaError(f"sound: {type(source).__name__}, needs a path, bytes or an array")
    name = os.fspath(source)
    try:
        with Path(source).open("rb") as file:
            return _read(name, file, os.fstat(file.fileno()).st_size, max_seconds)
    except OSError as error:
        raise MediaError(f"{name}: {error.strerror or error}") from None
    except ValueError as error:
        if isinstance(error, MediaError):
            raise
        raise MediaError(f"sound {name[:80]!r}: {error}") from None


def _read(name: str, file: BinaryIO, nbytes: int, max_seconds: float) -> Sound:
    if nbytes > MAX_BYTES:
        raise MediaError(f"{name}: {nbytes} bytes, needs at most {MAX_BYTES}; split the file")
    head = file.read(16)
    file.seek(0)
    kind = _sniff(head)
    if not head:
        raise MediaError(f"{name}: the file is empty")
    if kind is None:
        raise MediaError(f"{name}: not a sound, needs {', '.join(_FORMATS)}")
    if kind in _UNREADABLE:
        raise MediaError(
            f"{name}: {kind} is not supported, needs {', '.join(_FORMATS)}; convert it, as with "
            "ffmpeg -i IN OUT.wav"
        )
    if kind == "WAV":
        wave = _WaveHeader.read(name, file, nbytes)
        if wave.encoding is not None:
            return _read_wave(name, file, wave, max_seconds)
    return _read_with_library(name, file, kind, max_seconds)


# Formats by their first bytes.

_FORMATS = ("WAV", "FLAC", "MP3", "OGG", "AIFF")
_UNREADABLE = ("MP4/M4A", "Matroska/WebM", "ASF/WMA", "AMR", "CAF")


def _sniff(head: bytes) -> str | None:
    """Return the format that the first 16 bytes belong to; None if unknown."""
    if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
        return "WAV"
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return "AIFF"
    # The box's size comes before its type.
    if head[4:8] == b"ftyp":
        return "MP4/M4A"
    starts = {
        b"fLaC": "FLAC", b"OggS": "OGG", b"ID3": "MP3", b"\x1aE\xdf\xa3": "Matroska/WebM",
        b"0&\xb2u": "ASF/WMA", b"#!AMR": "AMR", b"caff": "CAF",
    }  # fmt: skip
    found = next((kind for start, kind in starts.items() if head.startswith(start)), None)
    # MPEG audio begins with eleven 1 bits, then version and layer, which must not be reserved.
    is_frame = len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0
    is_mpeg = is_frame and head[1] & 0x18 != 0x08 and head[1] & 0x06 != 0
    return found or ("MP3" if is_mpeg else None)


# WAV.

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
# A chunk takes eight bytes, so that a file may have millions.
_MOST_CHUNKS = 10_000
# Programs that write to a pipe do not know the length, and write one of these.
_UNKNOWN_LENGTHS = (0, 0x7FFFFFFF, 0x7FFFFF00, 0xFFFFFFFF, 0xFFFFFF00)


@dataclass(frozen=True, slots=True)
class _WaveHeader:
    """The format of a WAV file and the place of its samples.

    Parameters
    ----------
    encoding : str or None
        NumPy's type of a sample, ``"i3"`` for 24 bits; None for a compressed encoding.
    start, nbytes : int
        Place and size of the samples.
    """

    encoding: str | None
    channels: int
    rate: int
    start: int
    nbytes: int

    @classmethod
    def read(cls, name: str, file: BinaryIO, nbytes: int) -> _WaveHeader:
        """Read the chunks of a file of `nbytes` up to its samples."""
        form: bytes | None = None
        at, wide = 12, None
        for _ in range(_MOST_CHUNKS):
            file.seek(at)
            head = file.read(8)
            if len(head) < 8:
                lacks = "samples (data)" if form is not None else "format (fmt)"
                raise MediaError(f"{name}: truncated or damaged WAV: it ends before its {lacks}")
            kind, size = head[:4], struct.unpack("<I", head[4:])[0]
            if kind == b"ds64":
                wide = struct.unpack("<QQ", file.read(16).ljust(16, b"\0"))[1]
            elif kind == b"fmt ":
                form = file.read(min(size, 40))
            elif kind == b"data":
                if form is None:
                    raise MediaError(f"{name}: damaged WAV: its samples come before their format")
                size = wide if wide is not None and size == 0xFFFFFFFF else size
                return cls._make(name, form, at + 8, size, nbytes)
            # Chunks begin at even places.
            at += 8 + size + size % 2
        raise MediaError(f"{name}: damaged WAV: {_MOST_CHUNKS} chunks, none of them its samples")

    @classmethod
    def _make(cls, name: str, form: bytes, start: int, size: int, nbytes: int) -> _WaveHeader:
        if len(form) < 16:
            raise MediaError(f"{name}: damaged WAV: its format has {len(form)} bytes, needs 16")
        tag, channels, rate, _, frame, bits = struct.unpack("<HHIIHH", form[:16])
        if tag == _EXTENSIBLE and len(form) >= 26:
            tag = struct.unpack("<H", form[24:26])[0]
        there = nbytes - start
        # Samples of 24 bits stored in 32 read as 32 bits: the width of a frame decides.
        width = frame // channels if channels else 0
        encodings = {
            (_PCM, 1): "u1", (_PCM, 2): "<i2", (_PCM, 3): "i3", (_PCM, 4): "<i4",
            (_FLOAT, 4): "<f4", (_FLOAT, 8): "<f8",
        }  # fmt: skip
        encoding = encodings.get((tag, width)) if channels and frame == width * channels else None
        if tag in (_PCM, _FLOAT) and encoding is None:
            raise MediaError(
                f"{name}: WAV of {bits} bits in frames of {frame} bytes for {channels} channels, "
                "needs 8, 16, 24 or 32 bits, or floats of 32 or 64"
            )
        if size in _UNKNOWN_LENGTHS and size != there:
            size = there
        if size > there and encoding is not None:
            raise MediaError(
                f"{name}: truncated WAV: {there} bytes of samples, its header declares {size}"
            )
        return cls(encoding, channels, rate, start, size)


def _read_wave(name: str, file: BinaryIO, wave: _WaveHeader, max_seconds: float) -> Sound:
    encoding = cast("str", wave.encoding)
    frame = int(encoding[-1]) * wave.channels
    frames = wave.nbytes // frame
    _require_format(name, frames, wave.rate, wave.channels, max_seconds)
    samples = np.empty(frames, np.float32)
    file.seek(wave.start)
    for at in range(0, frames, _BLOCK):
        data = file.read(min(_BLOCK, frames - at) * frame)
        block = _decode(data, encoding).reshape(-1, wave.channels)
        # What f32 cannot hold becomes infinite, and is reported below.
        with np.errstate(over="ignore"):
            samples[at : at + len(block)] = block.mean(1)
    return Sound(_require_finite(name, samples), wave.rate)


def _decode(data: bytes, encoding: str) -> NDArray[np.floating[Any]]:
    """Return samples from -1 to 1; integers are divided by half of their range."""
    if encoding == "i3":
        # The three bytes become the upper ones of 32 bits.
        parts = np.frombuffer(data, np.uint8).reshape(-1, 3)
        wide = np.zeros((len(parts), 4), np.uint8)
        wide[:, 1:] = parts
        return wide.view("<i4")[:, 0] / 2**31
    values = np.frombuffer(data, encoding)
    if encoding == "u1":
        return (values.astype(np.float32) - 128) / 128
    if values.dtype.kind == "i":
        return values / 2.0 ** (8 * values.itemsize - 1)
    return values


# Other formats, by soundfile.

# libmpg123 prints about each damaged frame.
_CHATTER = re.compile(rb"(Note|Warning): [^\n]*\n|\n?\[[^\]\n]*libmpg123[^\n]*\n")


class _SoundFile(Protocol):
    """The members of soundfile.SoundFile that this module uses."""

    samplerate: int
    channels: int
    frames: int
    format: str

    def read(self, frames: int, dtype: str, always_2d: bool) -> F32s: ...

    def close(self) -> None: ...


def _read_with_library(name: str, file: BinaryIO, kind: str, max_seconds: float) -> Sound:
    try:
        library: Any = import_module("soundfile")
    except (ImportError, OSError) as error:
        # OSError: the package is installed, but libsndfile is missing.
        raise MediaError(
            f"{name}: {kind if kind != 'WAV' else 'compressed WAV'} needs the package soundfile "
            f"({error}): `pip install '.[audio]'` in the checkout, or convert the file to WAV"
        ) from None
    file.seek(0)
    with discard_messages(_CHATTER) if kind == "MP3" else nullcontext():
        return _decode_with_library(name, file, kind, max_seconds, library)


def _decode_with_library(
    name: str,
    file: BinaryIO,
    kind: str,
    max_seconds: float,
    library: Any,  # noqa: ANN401  a module
) -> Sound:
    damaged: type[Exception] = library.LibsndfileError
    try:
        opened = cast("_SoundFile", library.SoundFile(file))
    except (damaged, RuntimeError, TypeError) as error:
        raise _damage(name, kind, error) from None
    try:
        _require_kind(name, opened.format, kind)
        _require_format(name, opened.frames, opened.samplerate, opened.channels, max_seconds)
        blocks = list(_blocks(opened, max_seconds))
    except (damaged, RuntimeError) as error:
        if isinstance(error, MediaError):
            raise
        raise _damage(name, kind, error) from None
    finally:
        opened.close()
    samples = np.concatenate(blocks) if blocks else np.empty(0, np.float32)
    # FLAC's header has the exact length; those of MP3 and Ogg may be estimates.
    if not len(samples) or (kind == "FLAC" and len(samples) < opened.frames):
        raise MediaError(
            f"{name}: truncated {kind}: {len(samples)} samples, its header declares {opened.frames}"
        )
    return Sound(_require_finite(name, samples), opened.samplerate)


def _damage(name: str, kind: str, error: Exception) -> MediaError:
    """Return an error for a file that the library cannot read."""
    # The library's message begins with the file object.
    why = str(error).rpartition(">: ")[2][:120]
    # Its MPEG decoder reports samples that it cannot find as a file that it cannot find.
    why = "no frames of sound" if "regular file" in why else why
    return MediaError(f"{name}: damaged {kind}: {why}")


def _blocks(opened: _SoundFile, max_seconds: float) -> Iterator[F32s]:
    """Yield mono samples block by block, at most those of `max_seconds`."""
    left = math.ceil(max_seconds * opened.samplerate)
    while left > 0:
        block = opened.read(min(_BLOCK, left), dtype="float32", always_2d=True)
        if not len(block):
            return
        left -= len(block)
        yield block.mean(1, dtype=np.float32)


def _require_kind(name: str, there: str, kind: str) -> None:
    """Raise if the library finds another format than the file's first bytes."""
    expected = {"WAV": ("WAV", "WAVEX", "RF64"), "MP3": ("MP3", "MPEG")}.get(kind, (kind,))
    if there not in expected:
        raise MediaError(f"{name}: begins like {kind}, but its contents are {there}")


# Checks.


def _require_format(name: str, frames: int, rate: int, channels: int, max_seconds: float) -> None:
    """Raise unless the header's fields are in range. Called before anything is decoded."""
    low, high = _RATES
    if not low <= rate <= high:
        raise MediaError(f"{name}: {rate} samples per second, needs {low} to {high}")
    if not 1 <= channels <= _MOST_CHANNELS:
        raise MediaError(f"{name}: {channels} channels, needs 1 to {_MOST_CHANNELS}")
    if frames < 1:
        raise MediaError(f"{name}: 0 samples, needs at least 1")
    _require_seconds(name, frames, rate, max_seconds)


def _require_seconds(name: str, frames: int, rate: int, max_seconds: float) -> None:
    if frames > max_seconds * rate:
        raise MediaError(
            f"{name}: {frames / rate:.1f} seconds, needs at most {max_seconds:g}; split it"
        )


def _require_finite(name: str, samples: F32s) -> F32s:
    if not np.isfinite(samples).all():
        place = int(np.flatnonzero(~np.isfinite(samples))[0])
        raise MediaError(f"{name}: sample {place} is {samples[place]}, needs finite numbers")
    return samples


def _from_array(values: NDArray[Any]) -> F32s:
    if values.ndim not in (1, 2) or not values.size or values.dtype.kind not in "fi":
        raise MediaError(
            f"sound: an array of {values.dtype} of shape {values.shape}, needs floats or signed "
            "integers, (samples,) or (samples, channels), and at least one"
        )
    if values.ndim == 2 and values.shape[1] > _MOST_CHANNELS:
        raise MediaError(
            f"sound: an array of shape {values.shape} has {values.shape[1]} channels, needs 1 to "
            f"{_MOST_CHANNELS}: (samples, channels)"
        )
    if values.dtype.kind == "i":
        values = values / 2.0 ** (8 * values.itemsize - 1)
    mono = values.mean(1) if values.ndim == 2 else values
    with np.errstate(over="ignore"):
        return _require_finite("sound", mono.astype(np.float32))


# Resampling.

# Zero crossings of the kernel on either side, its cutoff as a share of the lower Nyquist frequency
# and Kaiser's parameter, for 100 dB: frequencies to 0.9 of Nyquist pass, those from 1.0 on are
# removed (Kaiser 1974; Oppenheim & Schafer, "Discrete-Time Signal Processing", §7.6).
_CROSSINGS, _CUTOFF, _BETA = 64, 0.95, 10.06
# Samples of one phase that are computed at a time.
_ROWS = 4096


def resample(samples: F32s, rate: int, to: int) -> F32s:
    """Resample by a windowed sinc, one filter for each phase: (samples,) at `to`, f32.

    Tones up to 0.9 of the lower Nyquist frequency are exact to 2e-5 of full scale away from the
    ends, and those above it are below 2e-5.

    Parameters
    ----------
    samples : (samples,), f32
    rate, to : int
        Samples a second.

    Source: Crochiere & Rabiner 1983, "Multirate Digital Signal Processing", §2.3.
    """
    if rate == to:
        return samples
    divisor = math.gcd(rate, to)
    up, down = to // divisor, rate // divisor
    # The kernel's zero crossings are those of the lower rate.
    scale = _CUTOFF * min(1.0, to / rate)
    half = math.ceil(_CROSSINGS / scale)
    count = -(-len(samples) * up // down)
    out = np.empty(count, np.float32)
    padded = np.pad(samples, (half, half + down + 1))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half)
    offsets = np.arange(-half + 1, half + 1)
    for phase in range(min(up, count)):
        # Output n is at input n * down / up: all outputs of a phase have the same fraction.
        first, fraction = divmod(phase * down, up)
        distance = offsets - fraction / up
        inside = np.clip(1 - (distance / half) ** 2, 0, None)
        taps = scale * np.sinc(scale * distance) * np.i0(_BETA * np.sqrt(inside)) / np.i0(_BETA)
        # A window that starts at i + 1 of the padded samples begins `half - 1` before sample i.
        rows, into = windows[first + 1 :: down], out[phase::up]
        for at in range(0, len(into), _ROWS):
            # BLAS does not take overlapping rows, and NumPy's own product is ten times slower.
            block = np.ascontiguousarray(rows[at : min(at + _ROWS, len(into))])
            into[at : at + _ROWS] = block @ taps.astype(np.float32)
    return out
