#!/bin/sh
# soundfile: samples given as floats are rounded down in WAV and AIFF, and to the nearest in FLAC
#
# Version: soundfile 0.14.0 with its libsndfile 1.2.2. Written with 16 or 24 bits a sample, a WAV or AIFF
# file has floor(32768 x) and so half a step too little on average, a constant offset with an error of
# up to a whole step; a FLAC file of the same array has the nearest step. 0.75 of a step becomes 0, -0.25
# becomes -1. So a data set that is stored as WAV differs from the same one as FLAC, in half of all samples,
# although both formats are exact.
. "$(dirname "$0")/common.sh"
install soundfile==0.14.0 numpy==2.4.6
expect 'WAV: 0.25 -> 0, 0.75 -> 0, -0.25 -> -1, -0.75 -> -1; mean error -0.50 steps, largest 1.0
AIFF: 0.25 -> 0, 0.75 -> 0, -0.25 -> -1, -0.75 -> -1; mean error -0.50 steps, largest 1.0
FLAC: 0.25 -> 0, 0.75 -> 1, -0.25 -> 0, -0.75 -> -1; mean error -0.00 steps, largest 0.5' <<'END'
import io

import numpy as np
import soundfile


def written(samples, kind):
    file = io.BytesIO()
    soundfile.write(file, samples / 32768, 16000, format=kind, subtype="PCM_16")
    file.seek(0)
    return soundfile.read(file, dtype="int16")[0]


steps = np.array([0.25, 0.75, -0.25, -0.75])
noise = np.random.RandomState(0).uniform(-16384, 16384, 100_000)
for kind in ("WAV", "AIFF", "FLAC"):
    pairs = ", ".join(f"{x} -> {y}" for x, y in zip(steps, written(steps, kind)))
    error = written(noise, kind) - noise
    mean, largest = error.mean(), np.abs(error).max()
    print(f"{kind}: {pairs}; mean error {mean:.2f} steps, largest {largest:.1f}")
END
