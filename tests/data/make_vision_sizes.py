"""Sizes and tiles of pictures by transformers' processors, for `tests/nn/vision`.

Needs transformers with torch and torchvision. Each entry of a processor is width, height and what
the test's function of that name returns::

    python tests/data/make_vision_sizes.py tests/data/vision_sizes.json
"""

import json
import random
import sys
from pathlib import Path

import numpy as np
import transformers as tf
from PIL import Image

PINPOINTS = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]
SQUARE = {"height": 56, "width": 56}
SIZES = [
    *((157, 103), (83, 131), (64, 64), (211, 59), (40, 222), (70, 126), (9, 300), (300, 20)),
    *((30, 200), (1, 1), (3, 500), (640, 480), (1100, 800), (513, 1301), (1280, 1024)),
]


def processors() -> dict:
    def pixels(patch: int, unit: int = 1) -> dict:
        area = 4 * patch**2 * unit
        return {"shortest_edge": 8 * area, "longest_edge": 4096 * area}

    crop = {"size": {"shortest_edge": 56}, "crop_size": SQUARE}
    return {
        "llava-1.6": tf.LlavaNextImageProcessorPil(**crop, image_grid_pinpoints=PINPOINTS),
        "idefics3": tf.Idefics3ImageProcessorPil(
            size={"longest_edge": 168}, max_image_size={"longest_edge": 56}
        ),
        "pixtral": tf.PixtralImageProcessorPil(
            size={"longest_edge": 448}, patch_size={"height": 14, "width": 14}
        ),
        "internvl3": tf.GotOcr2ImageProcessorPil(size=SQUARE, crop_to_patches=True),
        "lfm2-vl": tf.Lfm2VlImageProcessor(),
        "llama4": tf.Llama4ImageProcessor(size=SQUARE, max_patches=9),
        "glm-4v": tf.Glm4vImageProcessorPil(size=pixels(14, 2)),
        "gemma4": tf.Gemma4ImageProcessorPil(max_soft_tokens=70),
        "muse-glimmer": tf.MuseGlimmerImageProcessor(max_image_tokens=60),
        "mllama": tf.MllamaImageProcessorPil(size=SQUARE),
        "qwen2-vl": tf.Qwen2VLImageProcessorPil(patch_size=14, size=pixels(14)),
        "qwen3-vl": tf.Qwen2VLImageProcessorPil(patch_size=16, size=pixels(16)),
    }


def describe(name: str, r: dict) -> list:
    count = r["pixel_values"].shape
    if name == "pixtral":
        return [int(x) for x in r["image_sizes"][0]]
    if name == "muse-glimmer":
        return [int(x) // 2 for x in r["image_grid_thw"][0][1:]]
    if name in ("glm-4v", "qwen2-vl", "qwen3-vl"):
        side = 16 if name == "qwen3-vl" else 14
        return [int(x) * side for x in r["image_grid_thw"][0][1:]]
    if name == "gemma4":
        places = np.asarray(r["image_position_ids"][0])
        return [int(places[:, 1].max() + 1) * 16, int(places[:, 0].max() + 1) * 16]
    if name == "lfm2-vl":
        sizes = [[int(a) * 16, int(b) * 16] for a, b in r["spatial_shapes"]]
        return sizes if len(sizes) == 1 else [len(sizes) - 1, sizes[-1]]
    if name == "llama4":
        return [int(x) for x in r["aspect_ratios"][0]]
    if name == "mllama":
        return [int(r["aspect_ratio_ids"][0, 0])]
    return [int(count[0] if name == "internvl3" else count[1])]


def main(path: str) -> None:
    numbers = random.Random(5)
    more = [(numbers.randint(1, 400), numbers.randint(1, 400)) for _ in range(15)]
    found: dict[str, list] = {}
    for name, processor in processors().items():
        for width, height in SIZES + more:
            picture = Image.fromarray(np.zeros((height, width, 3), np.uint8))
            result = processor(images=[picture], return_tensors="pt")
            found.setdefault(name, []).append([width, height, describe(name, result)])
    Path(path).write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
