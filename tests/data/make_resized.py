"""Pictures that PyTorch resized, for `tests/ops/test_resizing.py`; needs torch.

::

    python tests/data/make_resized.py tests/data/resized.npz
"""

import itertools
import sys

import numpy as np
import torch
from torch.nn.functional import interpolate

SIZES = [(6, 8), (2, 3), (7, 3), (1, 11)]
SMOOTH = [
    (mode, *flags)
    for mode in ("bilinear", "bicubic")
    for flags in itertools.product((False, True), repeat=2)
]
PLAIN = [(mode, False, False) for mode in ("nearest", "nearest-exact", "area")]


def main(path: str) -> None:
    x = np.random.default_rng(18).standard_normal((1, 3, 5, 2)).astype("f4")
    found = {"x": x}
    channels_first = torch.from_numpy(x).permute(0, 3, 1, 2).contiguous()
    for size, (mode, align, antialias) in itertools.product(SIZES, PLAIN + SMOOTH):
        corners = align if mode.startswith("bi") else None
        y = interpolate(channels_first, size, mode=mode, align_corners=corners, antialias=antialias)
        found[f"{size[0]} {size[1]} {mode} {align:d} {antialias:d}"] = y.permute(0, 2, 3, 1).numpy()
    np.savez_compressed(path, **found)


if __name__ == "__main__":
    main(sys.argv[1])
