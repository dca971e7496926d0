"""Rows, texts and positions of a video by transformers' Qwen models.

For `tests/models/test_videos.py`. Needs transformers with torch and torchvision. Weights are made
from their names, so that they need no file::

    python tests/data/make_videos.py tests/data/videos.npz
"""

import json
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers as tf
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.data.tower_weights import frames, make_weights

_TEXT = "language_model|lm_head"
START, PICTURE, END, VIDEO = 4, 5, 6, 7
SPELLED = {START: "<|vision_start|>", PICTURE: "<|image_pad|>", END: "<|vision_end|>",
           VIDEO: "<|video_pad|>"}  # fmt: skip
COLS, WIDTH, HEADS = 24, 32, 2
TEXT = {
    "vocab_size": 64, "hidden_size": COLS, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 32, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
IDS = {"vision_start_token_id": START, "image_token_id": PICTURE, "vision_end_token_id": END,
       "video_token_id": VIDEO}  # fmt: skip
FPS = 3.0


def kinds():
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]}
    text = {**TEXT, "rope_parameters": rope}
    two = {"depth": 2, "num_heads": HEADS, "spatial_merge_size": 2, "temporal_patch_size": 2}
    return {
        "qwen2-vl": (
            tf.Qwen2VLConfig(
                text_config=text, **IDS,
                vision_config={**two, "embed_dim": WIDTH, "hidden_size": COLS, "mlp_ratio": 2,
                               "patch_size": 7},
            ),
            tf.Qwen2VLProcessor,
            tf.Qwen2VLVideoProcessor(patch_size=7, size=limits(14**2, 9 * 14**2)),
        ),
        "qwen2.5-vl": (
            tf.Qwen2_5_VLConfig(
                text_config=text, **IDS,
                vision_config={**two, "hidden_size": WIDTH, "out_hidden_size": COLS,
                               "intermediate_size": 40, "patch_size": 7, "window_size": 28,
                               "fullatt_block_indexes": [1], "tokens_per_second": 2},
            ),
            tf.Qwen2_5_VLProcessor,
            tf.Qwen2VLVideoProcessor(patch_size=7, size=limits(14**2, 9 * 14**2)),
        ),
        "qwen3-vl": (
            tf.Qwen3VLConfig(
                text_config={**text, "head_dim": 12,
                             "rope_parameters": {**rope, "mrope_interleaved": True}}, **IDS,
                vision_config={**two, "hidden_size": WIDTH, "out_hidden_size": COLS,
                               "intermediate_size": 40, "patch_size": 8,
                               "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
            ),
            tf.Qwen3VLProcessor,
            # Five frames exceed these limits.
            tf.Qwen3VLVideoProcessor(patch_size=8, size=limits(16**2, 4 * 9 * 16**2)),
        ),
    }  # fmt: skip


def limits(fewest, most):
    return {"shortest_edge": fewest, "longest_edge": most}


def make_tokenizer():
    words = {"<unk>": 0, **{text: number for number, text in SPELLED.items()}}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made = tf.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>")
    made.image_token, made.video_token = SPELLED[PICTURE], SPELLED[VIDEO]
    made.vision_start_token, made.vision_end_token = SPELLED[START], SPELLED[END]
    return made


def positions(model, text, inputs):
    """Return positions of a text's control tokens and rows, between one token on each side."""
    ids = [9] + [next(i for i, t in SPELLED.items() if t == part) if part in SPELLED.values() else 9
                 for part in re.findall(r"<\|.*?\|>|<[^|]*?>", text)] + [9]  # fmt: skip
    ids = torch.tensor([ids])
    more = {k: inputs[k] for k in ("second_per_grid_ts",) if k in inputs}
    kinds = (ids == VIDEO).int() * 2
    found, _ = model.model.get_rope_index(
        ids, kinds, video_grid_thw=inputs["video_grid_thw"], **more
    )
    return found[:, 0].numpy()


@torch.no_grad()
def main(path):
    arrays, facts = {}, {}
    for name, (config, processor_class, videos) in kinds().items():
        cls = getattr(tf, type(config).__name__.replace("Config", "ForConditionalGeneration"))
        model = cls._from_config(config, attn_implementation="eager").float().eval()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            file = Path(folder) / "model.safetensors"
            shapes = {k: v.shape for k, v in load_file(file).items()}
            save_file(make_weights(shapes), file, {"format": "pt"})
            model = cls.from_pretrained(folder, attn_implementation="eager").float().eval()
            settings = json.loads((Path(folder) / "config.json").read_text())
        shown = torch.tensor(np.stack(frames(5, 41, 70)).transpose(0, 3, 1, 2))
        metadata = [tf.video_utils.VideoMetadata(5, FPS, frames_indices=[*range(5)])]
        inputs = videos(
            [shown], video_metadata=metadata, do_sample_frames=False, return_metadata=True,
            return_tensors="pt",
        )  # fmt: skip
        images = tf.Qwen2VLImageProcessorPil()
        processor = processor_class(images, make_tokenizer(), videos)
        text = processor.replace_video_token({**inputs}, 0)
        if name == "qwen2.5-vl":
            inputs["second_per_grid_ts"] = torch.tensor([2 / metadata[0].sampled_fps])
        if name != "qwen3-vl":
            text = SPELLED[START] + text + SPELLED[END]
        found = model.model.get_video_features(
            inputs["pixel_values_videos"], inputs["video_grid_thw"]
        )
        rows = [torch.cat([*found.pooler_output])]
        rows += [torch.cat([*each]) for each in getattr(found, "deepstack_features", None) or []]
        arrays[name] = torch.cat(rows, 1).numpy()
        arrays[f"{name}.positions"] = positions(model, text, inputs)
        arrays[f"{name}.pixels"] = inputs["pixel_values_videos"].numpy().astype(np.float64).sum(1)
        facts[name] = {
            "config": settings,
            "processor": json.loads(videos.to_json_string()),
            "text": text,
            "shapes": {k: list(v) for k, v in shapes.items() if not re.search(_TEXT, k)},
        }
    whole = json.dumps(facts, separators=(",", ":")).encode()
    np.savez_compressed(path, facts=np.frombuffer(whole, np.uint8), **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
