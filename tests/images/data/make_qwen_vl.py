"""Records the states of transformers' Qwen2.5-VL for a picture in a text: ``qwen_vl.npz``.

    python tests/images/data/make_qwen_vl.py         with torch and transformers 5

Windows are smaller than the picture and do not fill it, and places have three axes, unlike in the
tiny pipelines. Weights are drawn by `drawn`, from the names of parameters.
"""

import zlib
from pathlib import Path

import numpy as np

VISION = {
    "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32,
    "patch_size": 2, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 8,
    "fullatt_block_indexes": [1],
}  # fmt: skip
TEXT = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
}  # fmt: skip
MARKER = 39
GRID = (1, 6, 10)  # three by five tokens, in windows of two by two
IDS = [3, 1, 4, *[MARKER] * 15, 9, 2, 6]


def drawn(name, shape):
    """Values of a parameter."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    x = rng.standard_normal(shape).astype(np.float32)
    if name.endswith("weight") and len(shape) > 1:
        return x * np.float32(1.2 / np.sqrt(np.prod(shape[1:])))
    return 1 + x / 4 if name.endswith("weight") else x / 4


def patches():
    """Patches of a picture."""
    values = 3 * 2 * 2 * 2
    return np.random.default_rng(7).standard_normal((60, values)).astype(np.float32)


def main():
    """Write what transformers says."""
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLModel

    config = Qwen2_5_VLConfig(text_config=TEXT, vision_config=VISION, image_token_id=MARKER)
    model = Qwen2_5_VLModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            short = name.replace("language_model.", "model.")
            parameter.copy_(torch.from_numpy(drawn(short, tuple(parameter.shape))))
        ids = torch.tensor([IDS])
        made = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=torch.from_numpy(patches()),
            image_grid_thw=torch.tensor([GRID]),
            mm_token_type_ids=(ids == MARKER).int(),
            output_hidden_states=True,
        )
    states = {f"state{i}": state.numpy() for i, state in enumerate(made.hidden_states)}
    np.savez(Path(__file__).with_name("qwen_vl.npz"), **states)


if __name__ == "__main__":
    main()
