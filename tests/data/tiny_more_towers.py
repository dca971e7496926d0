"""More kinds for ``../shared/tools/tiny_towers.py``, with its commands and files.

Needs what that tool needs::

    python tests/data/tiny_more_towers.py make kimi-k2.5 FOLDER
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL.Image import Resampling

sys.path.insert(0, str(Path(__file__).parents[3] / "shared" / "tools"))
import tiny_towers as tiny
from make_tower_greedy import choose, inputs
from tiny_towers import FF, VD, VFF, VH, K, text, tok

BICUBIC = Resampling.BICUBIC
KIMI = ["<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>",
        "<|kimi_k25_video_placeholder|>", "<|media_start|>"]  # fmt: skip


def kimi_config():
    from transformers import Kimi_K25Config

    kind = tiny.KINDS["kimi-k2.5"]
    words = text(
        model_type="deepseek_v3", rms_norm_eps=1e-6, q_lora_rank=48,
        num_attention_heads=2, num_key_value_heads=2,
        kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32,
        first_k_dense_replace=1, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=FF, n_group=1, topk_group=1, norm_topk_prob=True,
        routed_scaling_factor=2.0, rope_interleave=True,
    )  # fmt: skip
    del words["head_dim"]
    vision = {
        "hidden_size": VD, "intermediate_size": VFF, "num_hidden_layers": 3,
        "num_attention_heads": VH, "pos_emb_height": 6, "pos_emb_width": 6, "patch_size": 14,
        "merge_kernel_size": [2, 2],
        "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0},
    }  # fmt: skip
    return Kimi_K25Config(
        text_config=words, vision_config=vision, projection_hidden_size=VD,
        image_token_id=tok(kind, KIMI[2]), video_token_id=tok(kind, KIMI[4]),
        vision_start_token_id=tok(kind, KIMI[0]), vision_end_token_id=tok(kind, KIMI[3]),
        tie_word_embeddings=False,
    )  # fmt: skip


WHOLE = f"{KIMI[0]}image{KIMI[1]}{KIMI[2]}{KIMI[3]}"
K("kimi-k2.5", "Kimi_K25ForConditionalGeneration", kimi_config,
  tiny.proc("Kimi_K25Processor", "Kimi_K25ImageProcessor", {"max_patches": 60},
            "Kimi_K25VideoProcessor"),
  KIMI, {"image_token": KIMI[2], "video_token": KIMI[4]}, WHOLE, KIMI[2],
  names=[(r"^language_model\.model\.blocks", "language_model.model.layers"),
         (r"^vision_tower\.encoder\.patch_embed", "vision_tower.patch_embed"),
         (r"^model\.mm_projector", "mm_projector")],
  mtmd=False, gguf=False)  # fmt: skip


class KimiVLProcessor:
    """Kimi-VL's published rule, which is not in transformers: black on the right and below."""

    patch, most, settings = 14, 24, {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def save_pretrained(self, folder):
        self.tokenizer.save_pretrained(folder)
        more = {**self.settings, "pad_input": True, "in_token_limit": self.most}
        Path(folder, "preprocessor_config.json").write_text(json.dumps(more))
        file = Path(folder, "config.json")
        config = json.loads(file.read_text())
        config["architectures"] = ["KimiVLForConditionalGeneration"]
        # Published settings, which transformers does not write and llama.cpp's converter reads.
        config["text_config"] |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
        vision = config["vision_config"]
        for axis in ("height", "width"):
            vision[f"init_pos_emb_{axis}"] = vision.pop(f"pos_emb_{axis}")
        file.write_text(json.dumps(config))

    def __call__(self, text, images, return_tensors):
        import torch

        step, found, grids = 2 * self.patch, [], []
        for image in images[0]:
            count = (image.width // self.patch) * (image.height // self.patch)
            if count > self.most:
                by = (self.most / count) ** 0.5
                image = image.resize((int(image.width * by), int(image.height * by)), BICUBIC)
            whole = np.zeros((-(-image.height // step) * step, -(-image.width // step) * step, 3))
            whole[: image.height, : image.width] = image
            values = torch.tensor((whole / 255).astype(np.float32)).permute(2, 0, 1)
            rows, columns = (side // self.patch for side in values.shape[1:])
            patches = ((values - 0.5) / 0.5).reshape(3, rows, self.patch, columns, self.patch)
            found.append(patches.permute(1, 3, 0, 2, 4).reshape(-1, 3, self.patch, self.patch))
            grids.append([1, rows, columns])
            text = [text[0].replace(KIMI[2], "<>" * (rows * columns // 4), 1)]
        ids = self.tokenizer(text[0].replace("<>", KIMI[2]), return_tensors="pt")["input_ids"]
        return {"input_ids": ids, "pixel_values": torch.cat(found),
                "image_grid_thw": torch.tensor(grids)}  # fmt: skip


K("kimi-vl", "Kimi_K25ForConditionalGeneration", kimi_config, lambda t, _: KimiVLProcessor(t),
  KIMI, {}, f"{KIMI[5]}image{KIMI[1]}{KIMI[2]}{KIMI[3]}", KIMI[2],
  names=[(r"^language_model\.model\.blocks", "language_model.model.layers"),
         (r"^vision_tower\.encoder\.patch_embed", "vision_tower.patch_embed"),
         (r"^(model\.)?mm_projector\.pre_norm", "multi_modal_projector.pre_norm"),
         (r"^mm_projector\.proj\.0", "multi_modal_projector.linear_1"),
         (r"^mm_projector\.proj\.2", "multi_modal_projector.linear_2")],
  mtmd=False)  # fmt: skip


def write_greedy(name, folder, seed):
    """Write the tokens that transformers chooses after the prompts."""
    import torch

    arrays = np.load(folder / "reference.npz")
    with torch.no_grad():
        model = tiny.build(tiny.KINDS[name], seed)
        found = {i: choose(model, inputs(arrays, i, torch), torch) for i in (1, 2)}
    (folder / "greedy.json").write_text(json.dumps(found))


if __name__ == "__main__":
    # Transformers cannot load the folders of those that it does not have.
    reloads = tiny.reloads
    tiny.reloads = lambda kind, *rest: "-" if kind.name == "kimi-vl" else reloads(kind, *rest)
    code = tiny.main()
    if sys.argv[1] == "make" and not code:
        seed = sys.argv[sys.argv.index("--seed") + 1] if "--seed" in sys.argv else 0
        write_greedy(sys.argv[2], Path(sys.argv[3]), int(seed))
    sys.exit(code)
