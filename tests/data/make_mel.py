"""Log-mel frames of transformers, for `tests/nn/audio/test_mel.py`; needs transformers.

::

    python tests/data/make_mel.py tests/data/whisper_mel.npz
"""

import sys

import numpy as np
from transformers import WhisperFeatureExtractor

FRAMES = [0, 1, 50, 99, 100, 101, 150, 198, 199]


def main() -> None:
    t = np.arange(32_000) / 16_000
    rising = 0.3 * np.sin(2 * np.pi * (300 + 700 * t) * t)
    sound = (rising + 0.05 * np.sin(2 * np.pi * 3333 * t) * (t > 1)).astype(np.float32)
    made = {}
    for bands in (80, 128):
        # The version in f64: that in torch's f32 differs from it by 2e-5.
        extractor = WhisperFeatureExtractor(feature_size=bands)
        features = extractor._np_extract_fbank_features(sound[None], "cpu")[0].T
        made[f"bands{bands}"] = features[FRAMES].astype(np.float32)
    np.savez(sys.argv[1], **made)


if __name__ == "__main__":
    main()
