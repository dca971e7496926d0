"""Vectors of texts and pictures by transformers, for `tests/models/test_shared_space.py`.

Needs transformers with torch and torchvision. Weights are made from their names::

    python tests/data/make_shared_space.py tests/data/shared_space.npz
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers as tf
from PIL import Image
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.data.tower_weights import make_weights, picture, write_tokenizer

TEXTS = ["A  Cat's dog!! 42\n café", "dog", "cat cat dog"]


def kinds():
    text = {
        "vocab_size": 528, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "layer_norm_eps": 1e-3,
    }  # fmt: skip
    vision = {
        "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 3, "layer_norm_eps": 1e-3, "image_size": 28, "patch_size": 7,
    }  # fmt: skip
    crop = tf.CLIPImageProcessorPil(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
    )
    stretch = tf.SiglipImageProcessorPil(size={"height": 28, "width": 28})
    newer = {**text, "eos_token_id": 520, "hidden_act": "gelu"}
    return {
        # The first version's id of the end token is wrong.
        "clip": (
            tf.CLIPConfig(text_config={**text, "eos_token_id": 2}, vision_config=vision,
                          projection_dim=24), crop,
        ),
        "clip-newer": (
            tf.CLIPConfig(text_config=newer, vision_config={**vision, "hidden_act": "gelu"},
                          projection_dim=24), crop,
        ),
        "siglip": (
            tf.SiglipConfig(
                text_config={**text, "max_position_embeddings": 20, "projection_size": 48},
                vision_config=vision), stretch,
        ),
    }  # fmt: skip


@torch.no_grad()
def main(path):
    arrays, facts = {}, {}
    for name, (config, images) in kinds().items():
        cls = tf.SiglipModel if name == "siglip" else tf.CLIPModel
        with tempfile.TemporaryDirectory() as folder:
            cls._from_config(config).save_pretrained(folder)
            file = Path(folder) / "model.safetensors"
            shapes = {k: v.shape for k, v in load_file(file).items()}
            save_file(make_weights(shapes), file, {"format": "pt"})
            model = cls.from_pretrained(folder, attn_implementation="eager").float().eval()
            settings = json.loads((Path(folder) / "config.json").read_text())
            images.save_pretrained(folder)
            processor = json.loads((Path(folder) / "preprocessor_config.json").read_text())
            write_tokenizer(Path(folder))
            tokens = tf.CLIPTokenizer.from_pretrained(folder)
        pads = {"padding": "max_length", "max_length": 20} if name == "siglip" else {}
        ids = [torch.tensor([tokens(text, **pads).input_ids]) for text in TEXTS]
        shown = [Image.fromarray(picture(*size)) for size in ((41, 70), (33, 20))]
        pixels = [images(images=[each], return_tensors="pt")["pixel_values"] for each in shown]
        rows = [model.get_text_features(each) for each in ids]
        rows += [model.get_image_features(each) for each in pixels]
        vectors = torch.cat([getattr(row, "pooler_output", row) for row in rows])
        arrays[name] = torch.nn.functional.normalize(vectors).numpy()
        facts[name] = {
            "config": settings, "processor": processor,
            "shapes": {k: list(v) for k, v in shapes.items()},
            "ids": [each[0].tolist() for each in ids],
        }  # fmt: skip
    whole = json.dumps(facts, separators=(",", ":")).encode()
    np.savez_compressed(path, facts=np.frombuffer(whole, np.uint8), **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
