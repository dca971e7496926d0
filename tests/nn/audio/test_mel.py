"""Log-mel spectrograms, against transformers' WhisperFeatureExtractor and a formula."""

from pathlib import Path

import numpy as np
import pytest

from wgpu_backend.errors import MediaError
from wgpu_backend.nn.audio.mel import log_mel, mel_filters

# Frames of the NumPy version of WhisperFeatureExtractor (transformers 5.24) for `sound()`.
RECORDED = Path(__file__).parent.parent.parent / "data" / "whisper_mel.npz"
FRAMES = [0, 1, 50, 99, 100, 101, 150, 198, 199]


def sound() -> np.ndarray:
    t = np.arange(32_000) / 16_000
    rising = 0.3 * np.sin(2 * np.pi * (300 + 700 * t) * t)
    return (rising + 0.05 * np.sin(2 * np.pi * 3333 * t) * (t > 1)).astype(np.float32)


@pytest.mark.parametrize("bands", [80, 128])
def test_equals_transformers(bands: int):
    found = log_mel(sound(), bands)
    assert (found.shape, found.dtype) == ((200, bands), np.float32)
    with np.load(RECORDED) as recorded:
        np.testing.assert_allclose(found[FRAMES], recorded[f"bands{bands}"], rtol=0, atol=1e-6)


def test_filters_have_one_peak_and_equal_area():
    filters = mel_filters(80)
    assert filters.shape == (80, 201)
    assert (filters >= 0).all()
    # Wide filters cover many bins of 40 Hz, so that sums approach their area, 1.
    np.testing.assert_allclose(filters[60:].sum(1) * 40, 1, rtol=0.01)
    rises = np.diff(filters.argmax(1))
    assert (rises >= 0).all()


def test_silence_and_short_sounds():
    assert np.unique(log_mel(np.zeros(1600, np.float32), 80)).tolist() == [-1.5]
    assert log_mel(np.zeros(201, np.float32), 80).shape == (1, 80)
    with pytest.raises(MediaError, match="200 samples, needs more than 200"):
        log_mel(np.zeros(200, np.float32), 80)


def test_pieces_make_the_whole():
    # More frames than are transformed together.
    long = np.tile(sound(), 16)
    whole = log_mel(long, 80)
    np.testing.assert_array_equal(whole[1000:1100], log_mel(long[158_400:], 80)[10:110])
