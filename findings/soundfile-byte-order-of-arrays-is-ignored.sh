#!/bin/sh
# soundfile: an array in the other byte order is written as noise
#
# Version: soundfile 0.14.0. NumPy arrays carry their byte order in the dtype, and all of NumPy honours it.
# `soundfile.write` looks at the name of the type ("int16") and passes the memory on, so that big-endian
# samples (`np.frombuffer(data, ">i2")`, as raw AIFF and AU data and the L16 payload of RTP have them) come back
# with their bytes swapped. No error or warning.
. "$(dirname "$0")/common.sh"
install soundfile==0.14.0 numpy==2.4.6
expect 'native: [0, 100, -100, 1000] -> [0, 100, -100, 1000]
swapped: [0, 100, -100, 1000] -> [0, 25600, -25345, -6141]' <<'END'
import io

import numpy as np
import soundfile

native = np.array([0, 100, -100, 1000], np.int16)
for name, samples in {"native": native, "swapped": native.astype(native.dtype.newbyteorder())}.items():
    file = io.BytesIO()
    soundfile.write(file, samples, 16000, format="WAV", subtype="PCM_16")
    file.seek(0)
    print(f"{name}: {samples.tolist()} -> {soundfile.read(file, dtype='int16')[0].tolist()}")
END
