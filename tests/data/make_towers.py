"""Embeddings of a picture by transformers' towers, for `tests/models/test_recorded_towers.py`.

Needs transformers with torch and torchvision. Weights are made from their names, so that they need
no file::

    python tests/data/make_towers.py tests/data/towers.npz
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
from tokenizers import Tokenizer, models

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.data.tower_weights import make_weights, picture

_TEXT = "language_model|text_model|lm_head"
WIDTH, INNER, COLS, HEADS, TILE, PATCH = 32, 48, 24, 2, 28, 7
SQUARE = {"height": TILE, "width": TILE}
PINPOINTS = [[28, 56], [56, 28], [56, 56]]
TEXT = {
    "vocab_size": 64, "hidden_size": COLS, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 12, "intermediate_size": 32, "rms_norm_eps": 2e-3,
    "pad_token_id": 0,
}  # fmt: skip


def vision(**more):
    return {
        "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 2,
        "num_attention_heads": HEADS, "layer_norm_eps": 1e-3, "image_size": TILE,
        "patch_size": PATCH, **more,
    }  # fmt: skip


def llama(**more):
    return {k: v for k, v in {**TEXT, "model_type": "llama", **more}.items() if v is not None}


def kinds():
    clip = vision(model_type="clip_vision_model", num_hidden_layers=3, hidden_act="quick_gelu")
    crop = {"size": {"shortest_edge": TILE}, "crop_size": SQUARE}
    axial = {"rope_type": "default", "rope_theta": 10000.0}
    pixtral = vision(model_type="pixtral", hidden_act="silu", rope_parameters=axial)
    del pixtral["layer_norm_eps"]
    sizes = {"size": {"longest_edge": 56}, "patch_size": {"height": PATCH, "width": PATCH}}
    two = {"hidden_size": WIDTH, "patch_size": PATCH, "intermediate_size": INNER}
    return {
        "llava": (
            tf.LlavaConfig(text_config=llama(), vision_config=clip, image_token_index=4),
            tf.LlavaProcessor,
            tf.CLIPImageProcessorPil(**crop),
            {"patch_size": PATCH, "vision_feature_select_strategy": "default",
             "num_additional_image_tokens": 1},
        ),
        "llava-next": (
            tf.LlavaNextConfig(text_config=llama(), vision_config=clip, image_token_index=4,
                               image_grid_pinpoints=PINPOINTS),
            tf.LlavaNextProcessor,
            tf.LlavaNextImageProcessorPil(**crop, image_grid_pinpoints=PINPOINTS),
            {"patch_size": PATCH, "vision_feature_select_strategy": "default",
             "num_additional_image_tokens": 1},
        ),
        "idefics3": (
            tf.Idefics3Config(text_config=llama(), vision_config=vision(), scale_factor=2,
                              image_token_id=4),
            tf.Idefics3Processor,
            tf.Idefics3ImageProcessorPil(size={"longest_edge": 56},
                                         max_image_size={"longest_edge": TILE}),
            {"image_seq_len": 4},
        ),
        "pixtral": (
            tf.LlavaConfig(text_config=llama(), vision_config=pixtral, image_token_index=4,
                           vision_feature_layer=-1, vision_feature_select_strategy="full"),
            tf.PixtralProcessor,
            tf.PixtralImageProcessorPil(**sizes),
            {"patch_size": PATCH, "spatial_merge_size": 1},
        ),
        "mistral3": (
            tf.Mistral3Config(text_config=llama(model_type="mistral"), vision_config=pixtral,
                              image_token_index=4, spatial_merge_size=2),
            tf.PixtralProcessor,
            tf.PixtralImageProcessorPil(**sizes),
            {"patch_size": PATCH, "spatial_merge_size": 2},
        ),
        "internvl": (
            tf.InternVLConfig(
                text_config=llama(model_type="qwen2", head_dim=None),
                vision_config=vision(image_size=[TILE] * 2, patch_size=[PATCH] * 2,
                                     attention_bias=True, model_type="internvl_vision"),
                image_token_id=4, image_seq_length=4,
            ),
            tf.InternVLProcessor,
            tf.GotOcr2ImageProcessorPil(size=SQUARE, crop_to_patches=True, max_patches=6),
            {"image_seq_length": 4},
        ),
        "lfm2": (
            tf.Lfm2VlConfig(
                text_config=llama(model_type="lfm2", layer_types=["full_attention"],
                                  head_dim=None),
                vision_config={k: v for k, v in vision(model_type="siglip2_vision_model",
                               num_patches=9, vision_use_head=False).items()
                               if k != "image_size"},
                image_token_id=4, projector_hidden_size=40, downsample_factor=2,
            ),
            tf.Lfm2VlProcessor,
            tf.Lfm2VlImageProcessor(min_image_tokens=4, max_image_tokens=6, tile_size=TILE,
                                    encoder_patch_size=PATCH, max_tiles=6),
            {},
        ),
        "llama4": (
            tf.Llama4Config(
                text_config={**TEXT, "num_local_experts": 2, "intermediate_size_mlp": 32},
                vision_config=vision(vision_output_dim=WIDTH, projector_input_dim=WIDTH,
                                     projector_output_dim=WIDTH, intermediate_size=4 * WIDTH,
                                     rope_parameters=axial),
                image_token_index=4,
            ),
            tf.Llama4Processor,
            tf.Llama4ImageProcessor(size=SQUARE, max_patches=6),
            {"patch_size": PATCH, "pixel_shuffle_ratio": 0.5},
        ),
        "glm4v": (
            tf.Glm4vConfig(
                text_config={**TEXT, "rope_parameters": {
                    "rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]}},
                vision_config={**two, "depth": 2, "num_heads": HEADS, "image_size": TILE,
                               "out_hidden_size": COLS, "rms_norm_eps": 1e-5},
                image_token_id=4,
            ),
            tf.Glm4vProcessor,
            tf.Glm4vImageProcessorPil(patch_size=PATCH,
                                      size={"shortest_edge": 784, "longest_edge": 6000}),
            {},
        ),
        "gemma4": (
            tf.Gemma4Config(
                text_config={**TEXT, "hidden_size_per_layer_input": 8,
                             "vocab_size_per_layer_input": 64, "num_kv_shared_layers": 0},
                vision_config={**two, "patch_size": 4, "num_hidden_layers": 2,
                               "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
                               "head_dim": WIDTH // HEADS, "pooling_kernel_size": 3,
                               "position_embedding_size": 64, "use_clipped_linears": True},
                audio_config=None, image_token_id=4,
            ),
            None,
            tf.Gemma4ImageProcessorPil(max_soft_tokens=70, patch_size=4),
            {},
        ),
    }  # fmt: skip


def make_tokenizer():
    plain = Tokenizer(models.WordLevel({"<unk>": 0, "<image>": 4}, unk_token="<unk>"))
    made = tf.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>")
    roles = {
        "start_image_token": "<img>", "context_image_token": "<image>", "video_token": "<video>",
        "end_image_token": "</img>", "image_token": "<image>",
        "image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>",
        "image_thumbnail_token": "<|img_thumbnail|>",
    }  # fmt: skip
    for name, token in roles.items():
        setattr(made, name, token)
        setattr(made, f"{name}_id", 4)
    return made


def text(processor_class, images, options, inputs):
    """Return what the processor writes in place of the picture."""
    if processor_class is None:
        return None
    more = [tf.Glm4vVideoProcessor()] if processor_class is tf.Glm4vProcessor else []
    more = [tf.InternVLVideoProcessor()] if processor_class is tf.InternVLProcessor else more
    processor = processor_class(images, make_tokenizer(), *more, **options)
    return processor.replace_image_token(inputs, 0, use_image_special_tokens=True)


def embed(model, inputs):
    accepted = ("pixel_values", "image_sizes", "image_grid_thw", "spatial_shapes",
                "pixel_attention_mask", "image_position_ids")  # fmt: skip
    given = {k: v for k, v in inputs.items() if k in accepted}
    if isinstance(model, tf.Llama4ForConditionalGeneration):
        states = model.get_image_features(**given).last_hidden_state
        rows = model.multi_modal_projector(states.reshape(-1, states.shape[-1]))
    else:
        found = model.model.get_image_features(**given)
        found = getattr(found, "pooler_output", found)
        rows = torch.cat([*found]) if isinstance(found, (list, tuple)) else found
    return rows.reshape(-1, rows.shape[-1]).float().numpy()


@torch.no_grad()
def main(path):
    arrays, facts = {}, {}
    for name, (config, processor_class, images, options) in kinds().items():
        cls = getattr(tf, type(config).__name__.replace("Config", "ForConditionalGeneration"))
        model = cls._from_config(config, attn_implementation="eager").float().eval()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            file = Path(folder) / "model.safetensors"
            weights = load_file(file)
            shapes = {k: v.shape for k, v in weights.items()}
            save_file(make_weights(shapes), file, {"format": "pt"})
            model = cls.from_pretrained(folder, attn_implementation="eager").float().eval()
            settings = json.loads((Path(folder) / "config.json").read_text())
            images.save_pretrained(folder)
            processor = json.loads((Path(folder) / "preprocessor_config.json").read_text())
        shown = Image.fromarray(picture(41, 70))
        more = {"return_row_col_info": True} if name in ("idefics3", "lfm2") else {}
        if name == "mistral3":
            more = {"patch_size": 2 * PATCH}
        inputs = images(images=[shown], return_tensors="pt", **more)
        inputs = {k: v.float() if getattr(v, "dtype", None) == torch.bfloat16 else v
                  for k, v in inputs.items()}  # fmt: skip
        facts[name] = {
            "config": settings,
            "processor": processor,
            "text": text(processor_class, images, options, dict(inputs)),
            "shapes": {k: list(v) for k, v in shapes.items() if not re.search(_TEXT, k)},
        }  # fmt: skip
        arrays[name] = embed(model, inputs)
    whole = json.dumps(facts, separators=(",", ":")).encode()
    np.savez_compressed(path, facts=np.frombuffer(whole, np.uint8), **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
