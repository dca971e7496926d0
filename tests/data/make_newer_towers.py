"""Rows of a picture by transformers' towers that `make_towers.py` leaves out, for the same test.

Needs transformers with torch and torchvision. Weights are made from the names of published files,
so that they need no file::

    python tests/data/make_newer_towers.py tests/data/newer_towers.npz
"""

import json
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers as tf
from PIL import Image
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.data.tower_weights import make_weights, picture

COLS, WIDTH, INNER, HEADS = 24, 32, 48, 2
SIZE = (41, 70)


def renamed(weights, pairs):
    for old, new in pairs:
        weights = {re.sub(old, new, name): values for name, values in weights.items()}
    return weights


def kimi():
    text = {
        "model_type": "deepseek_v3", "vocab_size": 64, "hidden_size": COLS, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 8, "kv_lora_rank": 8,
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 2,
        "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "intermediate_size": 32,
        "moe_intermediate_size": 32,
    }  # fmt: skip
    rope = {"rope_type": "axial", "rope_theta": 10000.0}
    vision = {
        "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 2,
        "num_attention_heads": HEADS, "pos_emb_height": 5, "pos_emb_width": 5, "patch_size": 7,
        "merge_kernel_size": [2, 2], "rope_parameters": rope,
    }  # fmt: skip
    config = tf.Kimi_K25Config(
        text_config=text, vision_config=vision, projection_hidden_size=WIDTH,
        tie_word_embeddings=False,
    )  # fmt: skip
    return config, tf.Kimi_K25ForConditionalGeneration


KIMI_NAMES = (
    (r"^vision_tower\.encoder\.patch_embed", "vision_tower.patch_embed"),
    (r"^model\.mm_projector", "mm_projector"),
    (r"^language_model\.model\.blocks", "language_model.model.layers"),
)
KIMI_VL_NAMES = (
    (r"^mm_projector\.pre_norm", "multi_modal_projector.pre_norm"),
    (r"^mm_projector\.proj\.0", "multi_modal_projector.linear_1"),
    (r"^mm_projector\.proj\.2", "multi_modal_projector.linear_2"),
)


def kimi_k25():
    images = tf.Kimi_K25ImageProcessor(patch_size=7, max_patches=30)
    inputs = images(images=[Image.fromarray(picture(*SIZE))], return_tensors="pt")
    return *kimi(), KIMI_NAMES, (), inputs, json.loads(images.to_json_string()), {}


def kimi_vl():
    """Kimi-VL is not in transformers: its picture has whole patches, and is padded with black."""
    whole = np.zeros((42, 70, 3))
    whole[:41, :70] = picture(*SIZE)
    values = torch.tensor((whole / 255).astype(np.float32)).permute(2, 0, 1)
    patches = ((values - 0.5) / 0.5).reshape(3, 6, 7, 10, 7).permute(1, 3, 0, 2, 4)
    inputs = {
        "pixel_values": patches.reshape(-1, 3, 7, 7),
        "image_grid_thw": torch.tensor([[1, 6, 10]]),
    }
    processor = {"in_token_limit": 4096, "pad_input": True, "image_mean": [0.5] * 3,
                 "image_std": [0.5] * 3}  # fmt: skip
    back = [
        (new.replace(".", r"\."), old.strip("^").replace("\\", "")) for old, new in KIMI_VL_NAMES
    ]
    published = {"architectures": ["KimiVLForConditionalGeneration"]}
    return *kimi(), (*KIMI_NAMES, *KIMI_VL_NAMES), back, inputs, processor, published


KINDS = {"kimi-k2.5": kimi_k25, "kimi-vl": kimi_vl}
_TEXT = "language_model|lm_head"


@torch.no_grad()
def record(config, kind, published, back, inputs, processor, more):
    """Return a tower's rows, and the facts that the test needs."""
    model = kind._from_config(config, attn_implementation="eager").float().eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        file = Path(folder) / "model.safetensors"
        shapes = {k: v.shape for k, v in renamed(load_file(file), published).items()}
        save_file(renamed(make_weights(shapes), back), file, {"format": "pt"})
        model = kind.from_pretrained(folder, attn_implementation="eager").float().eval()
        settings = json.loads((Path(folder) / "config.json").read_text()) | more
    found = model.model.get_image_features(**inputs)
    rows = torch.cat([*getattr(found, "pooler_output", found)])
    facts = {
        "config": settings,
        "processor": processor,
        "text": None,
        "shapes": {k: list(v) for k, v in shapes.items() if not re.search(_TEXT, k)},
    }
    return rows.reshape(-1, rows.shape[-1]).numpy(), facts


def main(path):
    arrays, facts = {}, {}
    for name, make in KINDS.items():
        arrays[name], facts[name] = record(*make())
    whole = json.dumps(facts, separators=(",", ":")).encode()
    np.savez_compressed(path, facts=np.frombuffer(whole, np.uint8), **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
