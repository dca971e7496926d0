#!/usr/bin/env python3
"""Write torch's results for one input, which a test compares with the package's network.

python examples/train_picture_model/reference.py
"""

from pathlib import Path

import numpy as np
import picture_file
import torch
from picture_words import encode

ROOT = Path(__file__).parents[2]
BUNDLED = ROOT / "wgpu_backend" / "bundled" / "pictures"
OUT = ROOT / "tests" / "images" / "data" / "bundled.npz"
SENTENCE = "a red circle left of a blue square"


@torch.no_grad()
def main() -> None:
    model = picture_file.load(BUNDLED)
    side = model.config.side
    noisy = torch.randn(1, side, side, 3, generator=torch.Generator().manual_seed(0))
    words = torch.tensor([encode(SENTENCE, model.config.words)])
    drawn, _ = model(noisy.half().float(), torch.tensor([0.7]), words)
    np.savez_compressed(OUT, noisy=noisy.half(), words=words.int(), drawn=drawn)


if __name__ == "__main__":
    main()
