"""The log-mel spectrograms that Whisper and Gemma 3n and 4 read.

Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision", §2.2: 80 bands
(128 since version 3) of windows of 25 ms every 10 ms. The mel scale is
Stevens, Volkmann & Newman 1937, in the form of Slaney 1998, "Auditory Toolbox", as in librosa.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import MediaError

RATE, WINDOW, HOP = 16_000, 400, 160
FRAMES = "frames"
"""The name of the model input that has the spectrogram's frames."""
# Values more than eight powers of ten below the largest are raised to that limit.
_RANGE = 8.0
_LEAST_POWER = 1e-10
# Frames for one FFT call, which bounds the memory.
_TOGETHER = 3000


@cache
def mel_filters(bands: int, window: int = WINDOW, rate: int = RATE) -> NDArray[np.float64]:
    """Return triangular filters of equal area: (bands, 1 + window // 2), from 0 to rate / 2 Hz.

    Slaney's scale is linear below 1000 Hz, with 15 mel there, and logarithmic above it.
    """
    edges = _mel_to_hertz(np.linspace(0, _hertz_to_mel(rate / 2), bands + 2))[:, None]
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    frequencies = np.linspace(0, rate / 2, 1 + window // 2)
    rising, falling = (frequencies - low) / (centre - low), (high - frequencies) / (high - centre)
    return np.clip(np.minimum(rising, falling), 0, None) * 2 / (high - low)


def _hertz_to_mel(hertz: float) -> float:
    linear = 3 * hertz / 200
    return linear if hertz < 1000 else float(15 + 27 * np.log(hertz / 1000) / np.log(6.4))


def _mel_to_hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(mel < 15, 200 * mel / 3, 1000 * 6.4 ** ((mel - 15) / 27))


def log_mel(samples: NDArray[np.float32], bands: int) -> NDArray[np.float32]:
    """Return a sound's log-mel spectrogram, about -1 to 1.5: (frames, bands), f32.

    There is a frame for each whole hop of 160 samples. Values more than eight powers of ten below
    the largest are raised to that limit.

    Parameters
    ----------
    samples : (samples,), f32
        At 16 kHz, from -1 to 1.
    bands : int
        80 or 128.

    Raises
    ------
    MediaError
        There are fewer than 201 samples, which the padding by reflection needs.
    """
    if len(samples) <= WINDOW // 2:
        raise MediaError(f"log_mel: {len(samples)} samples, needs more than {WINDOW // 2}")
    filters = mel_filters(bands)
    # Hann's window, periodic.
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    padded = np.pad(samples, WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][: len(samples) // HOP]
    out = np.empty((len(frames), bands), np.float32)
    for at in range(0, len(frames), _TOGETHER):
        spectrum = np.fft.rfft(frames[at : at + _TOGETHER] * window)
        power = spectrum.real**2 + spectrum.imag**2
        out[at : at + _TOGETHER] = np.log10(np.maximum(power @ filters.T, _LEAST_POWER))
    np.maximum(out, out.max() - _RANGE, out=out)
    out += 4
    out /= 4
    return out


# Gemma 4: windows of 20 ms every 10 ms, and the mel scale of O'Shaughnessy 1987, as in HTK.
_SHORT = 320
_BINS = 512
_FLOOR = 1e-3
# Gemma 3n: windows of 32 ms, and a filter before them that raises high frequencies.
_LONG = 512
_FINE_BINS = 1024
_LOW_FLOOR = 1e-5
_EMPHASIS = 0.97
_RANGE_OF_SPEECH = (125.0, 7600.0)
_PIECE = 128


@cache
def _plain_filters(
    bands: int, bins: int = _BINS, hertz: tuple[float, float] = (0.0, RATE / 2)
) -> NDArray[np.float64]:
    """Return triangular filters of equal height between two frequencies: (1 + bins // 2, bands)."""
    least, most = (2595 * math.log10(1 + each / 700) for each in hertz)
    edges = _plain_mel_to_hertz(np.linspace(least, most, bands + 2))
    frequencies = np.linspace(0, RATE / 2, 1 + bins // 2)[:, None]
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (frequencies - low) / (centre - low), (high - frequencies) / (high - centre)
    return np.clip(np.minimum(rising, falling), 0, None)


def _plain_mel_to_hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    return 700 * (np.power(10.0, mel / 2595) - 1)


def log_magnitudes(samples: NDArray[np.float32], bands: int) -> NDArray[np.float32]:
    """Return the logarithms of a sound's mel magnitudes, as Gemma 4 reads them: (frames, bands).

    Windows begin 10 ms before the sound. Those that end after it are left out.

    Parameters
    ----------
    samples : (samples,), f32
        At 16 kHz, from -1 to 1.
    """
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_SHORT) / _SHORT)
    count = max(-(-(len(samples) - HOP) // HOP), 0)
    if not count:
        return np.empty((0, bands), np.float32)
    padded = np.pad(samples, (HOP, _SHORT))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _SHORT)[::HOP][:count]
    out = np.empty((count, bands), np.float32)
    for at in range(0, count, _TOGETHER):
        # The window is applied in f32, as in the published code.
        values = frames[at : at + _TOGETHER] * window.astype(np.float32)
        magnitudes = np.abs(np.fft.rfft(values.astype(np.float64), _BINS))
        out[at : at + _TOGETHER] = np.log(magnitudes @ _plain_filters(bands) + _FLOOR)
    return out


def log_emphasised(samples: NDArray[np.float32], bands: int) -> NDArray[np.float32]:
    """Return the logarithms of a sound's mel magnitudes, as Gemma 3n reads them: (frames, bands).

    Zeros make the sound a multiple of 128 samples. Windows that end after it are left out.

    Parameters
    ----------
    samples : (samples,), f32
        At 16 kHz, from -1 to 1.
    """
    padded = np.pad(samples, (0, -len(samples) % _PIECE))
    if len(padded) <= _LONG:
        return np.empty((0, bands), np.float32)
    # The published code also reads, and drops, one sample after each window.
    frames = np.lib.stride_tricks.sliding_window_view(padded, _LONG + 1)[::HOP, :_LONG]
    # All of this is in f32 in the published code. Quiet bands beside loud ones would differ.
    turns = 2 * np.pi * np.arange(_LONG, dtype=np.float32) / _LONG
    window = 0.5 * (1 - np.cos(turns))
    filters = _plain_filters(bands, _FINE_BINS, _RANGE_OF_SPEECH)
    out = np.empty((len(frames), bands), np.float32)
    for at in range(0, len(frames), _TOGETHER):
        part = frames[at : at + _TOGETHER]
        # The first sample of a window has none before it.
        first = part[:, :1] * (1 - _EMPHASIS)
        values = np.concatenate([first, part[:, 1:] - _EMPHASIS * part[:, :-1]], 1) * window
        magnitudes = np.abs(np.fft.rfft(values, _FINE_BINS))
        out[at : at + _TOGETHER] = np.log(np.maximum(magnitudes @ filters, _LOW_FLOOR))
    return out
