"""Rows of a picture by transformers' towers that `make_towers.py` leaves out, for the same test.

Needs transformers with torch, torchvision and timm. Weights are made from the names of published
files, so that they need no file::

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
from tests.data.tower_weights import make_weights, picture, sound

COLS, WIDTH, INNER, HEADS = 24, 32, 48, 2
SAMPLES = 20_000
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


_TEXT = "language_model|lm_head"


class Resampler(torch.nn.Module):
    """Rows of MiniCPM-V by torch's own attention: the published code is not in transformers."""

    def __init__(self, cols, inner, count):
        super().__init__()
        self.query = torch.nn.Parameter(torch.zeros(count, cols))
        self.proj = torch.nn.Parameter(torch.zeros(cols, cols))
        self.kv_proj = torch.nn.Linear(inner, cols, bias=False)
        self.attn = torch.nn.MultiheadAttention(cols, max(cols // 128, 1), batch_first=True)
        for name in ("ln_q", "ln_kv", "ln_post"):
            setattr(self, name, torch.nn.LayerNorm(cols, eps=1e-6))

    def forward(self, x, rows, columns):
        values = self.ln_kv(self.kv_proj(x))
        parts = []
        for count, axis in ((columns, 1), (rows, 0)):
            quarter = self.query.shape[1] // 4
            angles = torch.outer(
                torch.arange(count), 1 / 10000 ** (torch.arange(quarter) / quarter)
            )
            wave = torch.cat([angles.sin(), angles.cos()], 1)
            shape = (rows, columns, 2 * quarter)
            parts.append((wave[None] if axis else wave[:, None]).expand(shape))
        places = torch.cat(parts, -1).reshape(1, rows * columns, -1)
        queries = self.ln_q(self.query)[None].expand(len(x), -1, -1)
        found, _ = self.attn(queries, values + places, values)
        return self.ln_post(found) @ self.proj


class MiniCPM(torch.nn.Module):
    """SigLIP for pictures of any shape, which Idefics 2 also has, and a resampler."""

    def __init__(self, config, cols, count):
        super().__init__()
        kind = tf.models.idefics2.modeling_idefics2.Idefics2VisionTransformer
        self.vpm = kind._from_config(config, attn_implementation="eager").float().eval()
        self.resampler = Resampler(cols, config.hidden_size, count)

    def forward(self, pictures):
        """Return the rows of pictures of one size."""
        patch = self.vpm.config.patch_size
        values = (torch.tensor(np.stack(pictures).astype(np.float32) / 255) - 0.5) / 0.5
        rows, columns = (side // patch for side in values.shape[1:3])
        mask = torch.ones(len(pictures), rows, columns, dtype=torch.bool)
        x = self.vpm(values.permute(0, 3, 1, 2), patch_attention_mask=mask).last_hidden_state
        made = self.resampler(x, rows, columns)
        return made.reshape(-1, made.shape[-1])


def minicpm_v():
    """A picture of 70 x 41 with slices of about 28 x 28: 3 x 2 of them, each 35 x 21 ... 28."""
    vision = {
        "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 2,
        "num_attention_heads": HEADS, "image_size": 35, "patch_size": 7, "layer_norm_eps": 1e-3,
        "hidden_act": "gelu_pytorch_tanh",
    }  # fmt: skip
    count = 3
    model = MiniCPM(tf.Idefics2VisionConfig(**vision), COLS, count).eval()
    shapes = {k: tuple(v.shape) for k, v in model.state_dict().items() if "position_ids" not in k}
    made = make_weights(shapes)
    model.load_state_dict({k: torch.tensor(v) for k, v in made.items()}, strict=False)
    shown = Image.fromarray(picture(*SIZE))
    # ceil(41 * 70 / 28^2) = 4, so 3, 4 or 5 slices; 2 x 2 and 1 x 3 are 1.71 and 1.76 apart from
    # 70 / 41 as ratios: 2 to 1 is not among them, and 1 x 3 is further in logarithms.
    whole = np.asarray(shown.resize((35, 21), Image.Resampling.BICUBIC))
    refined = np.asarray(shown.resize((70, 42), Image.Resampling.BICUBIC))
    slices = [refined[i : i + 21, j : j + 35] for i in (0, 21) for j in (0, 35)]
    with torch.no_grad():
        rows = torch.cat([model([whole]), model(slices)]).numpy()
    row = "<slice>" + "<unk>" * count + "</slice>"
    facts = {
        "config": {"architectures": ["MiniCPMV"], "version": 2.6, "hidden_size": COLS,
                   "vision_config": vision},
        "processor": {"scale_resolution": 28, "max_slice_nums": 9},
        "text": f"<image_id>0</image_id><image>{'<unk>' * count}</image>{row * 2}\n{row * 2}",
        "shapes": {k: list(v) for k, v in shapes.items()},
    }  # fmt: skip
    return rows, facts


def gemma4_audio():
    """1.25 seconds: 125 windows of 10 ms, of which the last ends after the sound; 31 rows."""
    words = {
        "vocab_size": 64, "hidden_size": COLS, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 12, "intermediate_size": 32, "pad_token_id": 0,
        "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64,
        "num_kv_shared_layers": 0,
    }  # fmt: skip
    audio = {
        "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS,
        "output_proj_dims": 20, "subsampling_conv_channels": [128, 4],
    }  # fmt: skip
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
              "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}  # fmt: skip
    config = tf.Gemma4Config(text_config=words, audio_config=audio, vision_config=vision)
    listen = tf.Gemma4AudioFeatureExtractor()
    inputs = listen([sound(SAMPLES)], sampling_rate=16000, return_tensors="pt")
    model, shapes, settings = load(config, tf.Gemma4ForConditionalGeneration)
    with torch.no_grad():
        found = model.model.get_audio_features(
            inputs["input_features"], inputs["input_features_mask"]
        )
    kept = found.attention_mask[0]
    rows = found.pooler_output.reshape(-1, COLS)[: len(kept)][kept]
    facts = {
        "config": settings,
        "processor": json.loads(listen.to_json_string()),
        "text": None,
        "sound": SAMPLES,
        "shapes": {k: list(v) for k, v in shapes.items() if re.search("audio", k)},
    }
    return rows.numpy(), facts


def small_mobilenet():
    """Return MobileNet-v5 of few channels by timm."""
    from timm.models._efficientnet_builder import decode_arch_def
    from timm.models.mobilenetv5 import MobileNetV5Encoder

    stages = [
        ["er_r1_k3_s2_e2_c8", "er_r1_k3_s1_e2_c8"],
        ["uir_r1_a3_k5_s2_e2_c8", "uir_r1_a5_k0_s1_e2_c8"],
        ["uir_r1_a5_k5_s2_e2_c16", "mqa_r1_k3_h2_v2_s1_d8_c16", "uir_r1_a0_k0_s1_e1_c16"],
        ["uir_r1_a5_k5_s2_e2_c24", "mqa_r1_k3_h2_s1_d8_c24", "uir_r1_a0_k0_s1_e2_c24"],
    ]
    return MobileNetV5Encoder(
        decode_arch_def(stages), stem_size=8, fix_stem=True, pad_type="same",
        layer_scale_init_value=1e-5,
    ).eval()  # fmt: skip


def gemma3n():
    """MobileNet-v5 with the norms and the matrix of Gemma 3n, as llama.cpp names them."""
    model = small_mobilenet()
    size, width = 512, 2048
    shapes = {k: tuple(v.shape) for k, v in model.state_dict().items()}
    names = {k: f"v.{k.replace('blocks.', 'blk.')}" for k in shapes}
    made = make_weights({names[k]: v for k, v in shapes.items()})
    model.load_state_dict({k: torch.tensor(made[names[k]]) for k in shapes})
    more = {"mm.soft_emb_norm.weight": (width,), "mm.input_projection.weight": (COLS, width),
            "mm.embedding.weight": (2, width), "mm.hard_emb_norm.weight": (width,)}  # fmt: skip
    ends = {k: torch.tensor(v) for k, v in make_weights(more).items()}
    shown = Image.fromarray(picture(*SIZE)).resize((size, size), Image.Resampling.BILINEAR)
    values = torch.tensor((np.asarray(shown) / 255).astype(np.float32)).permute(2, 0, 1)
    with torch.no_grad():
        x = model(values[None]).reshape(width, 256).T * width**0.5
        x = torch.nn.functional.rms_norm(x, (width,), ends["mm.soft_emb_norm.weight"], 1e-6)
        # The token <end_of_image>, which has an embedding of the tower's width.
        end = ends["mm.embedding.weight"][:1]
        end = torch.nn.functional.rms_norm(end, (width,), ends["mm.hard_emb_norm.weight"], 1e-6)
        x = torch.cat([x, end]) @ ends["mm.input_projection.weight"].T
        rows = torch.nn.functional.rms_norm(x, (COLS,), None, 1e-6)
    facts = {
        "keys": {"projector_type": "gemma3nv", "vision.image_size": size,
                 "vision.embedding_length": width, "vision.projection_dim": COLS},
        "shapes": {names[k]: list(v) for k, v in shapes.items()} | more,
    }  # fmt: skip
    return rows.numpy(), facts


def gemma3n_audio():
    """1.25 seconds: 122 windows and 8 rows, then 180 of silence and that of <end_of_audio>."""
    kind = tf.models.gemma3n.modeling_gemma3n
    words = tf.Gemma3nTextConfig(hidden_size=COLS, num_hidden_layers=5)
    config = tf.Gemma3nAudioConfig(
        hidden_size=WIDTH, conf_num_hidden_layers=2, conf_num_attention_heads=HEADS,
        sscp_conv_channel_size=(128, 4), vocab_size=7, vocab_offset=9,
    )  # fmt: skip
    parts = {
        "model.audio_tower.": kind.Gemma3nAudioEncoder(config),
        "model.embed_audio.": kind.Gemma3nMultimodalEmbedder(config, words),
    }
    shapes = {f"{root}{k}": tuple(v.shape)
              for root, part in parts.items() for k, v in part.state_dict().items()}  # fmt: skip
    made = make_weights(shapes)
    for root, part in parts.items():
        own = {k: torch.tensor(made[f"{root}{k}"]) for k in part.state_dict()}
        part.load_state_dict(own)
        part.float().eval()
    listen = tf.Gemma3nAudioFeatureExtractor()
    inputs = listen([sound(SAMPLES)], sampling_rate=16000, return_tensors="pt")
    tower, embed = parts.values()
    with torch.no_grad():
        found = tower(inputs["input_features"], ~inputs["input_features_mask"])
        assert not found.audio_mel_mask.any()
        tokens = embed(input_ids=torch.tensor([[15] * 180 + [9]]))[0]
        rows = torch.cat([embed(inputs_embeds=found.last_hidden_state)[0], tokens])
    settings = {
        "architectures": ["Gemma3nForConditionalGeneration"],
        "audio_config": config.to_dict(),
        "text_config": {"hidden_size": COLS},
    }
    facts = {
        "config": settings,
        "processor": {k: v for k, v in json.loads(listen.to_json_string()).items()
                      if k not in ("mel_filters", "window")},
        "text": None,
        "sound": SAMPLES,
        "shapes": {k: list(v) for k, v in shapes.items()},
        "frames": inputs["input_features"][0, ::40].tolist(),
    }  # fmt: skip
    return rows.numpy(), facts


def muse_glimmer():
    """A picture of 70 x 41, in 3 x 5 squares of 14 pixels; windows have 2 x 2 squares."""
    text = {
        "vocab_size": 64, "hidden_size": COLS, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 12, "intermediate_size": 32, "sliding_window": 8,
    }  # fmt: skip
    vision = {
        "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 5,
        "num_attention_heads": HEADS, "pos_emb_height": 4, "pos_emb_width": 4, "patch_size": 7,
        "layer_norm_eps": 1e-3,
    }  # fmt: skip
    config = tf.MuseGlimmerConfig(
        text_config=text, vision_config=vision, out_hidden_size=4 * WIDTH,
        projector_hidden_size=INNER,
    )  # fmt: skip
    images = tf.MuseGlimmerImageProcessor(patch_size=7)
    inputs = images(images=[Image.fromarray(picture(*SIZE))], return_tensors="pt")
    model, shapes, settings = load(config, tf.MuseGlimmerForConditionalGeneration)
    with torch.no_grad():
        rows = model.model.get_image_features(**inputs).pooler_output[0]
    facts = {
        "config": settings,
        "processor": json.loads(images.to_json_string()),
        "text": f"<|image_start|>{'<|patch|>' * len(rows)}<|image_end|>",
        "shapes": {k: list(v) for k, v in shapes.items() if not re.search(_TEXT, k)},
    }
    return rows.numpy(), facts


KINDS = {
    "gemma3n": gemma3n,
    "gemma3n-audio": gemma3n_audio,
    "gemma4-audio": gemma4_audio,
    "kimi-k2.5": lambda: record(*kimi_k25()),
    "kimi-vl": lambda: record(*kimi_vl()),
    "minicpm-v": minicpm_v,
    "muse-glimmer": muse_glimmer,
}


def load(config, kind, published=(), back=()):
    """Return a model with made weights, their shapes by published names, and its config.json."""
    model = kind._from_config(config, attn_implementation="eager").float().eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        file = Path(folder) / "model.safetensors"
        shapes = {k: v.shape for k, v in renamed(load_file(file), published).items()}
        save_file(renamed(make_weights(shapes), back), file, {"format": "pt"})
        model = kind.from_pretrained(folder, attn_implementation="eager").float().eval()
        return model, shapes, json.loads((Path(folder) / "config.json").read_text())


@torch.no_grad()
def record(config, kind, published, back, inputs, processor, more):
    """Return a tower's rows, and the facts that the test needs."""
    model, shapes, settings = load(config, kind, published, back)
    found = model.model.get_image_features(**inputs)
    rows = torch.cat([*getattr(found, "pooler_output", found)])
    facts = {
        "config": settings | more,
        "processor": processor,
        "text": None,
        "shapes": {k: list(v) for k, v in shapes.items() if not re.search(_TEXT, k)},
    }
    return rows.reshape(-1, rows.shape[-1]).numpy(), facts


def main(path, *names):
    """Make all kinds, or those of `names` beside the others in the file."""
    arrays, facts = {}, {}
    if names:
        with np.load(path) as file:
            facts = json.loads(file["facts"].tobytes())
            arrays = {key: file[key] for key in file.files if key != "facts"}
    for name, make in KINDS.items():
        if name in names or not names:
            arrays[name], facts[name] = make()
    whole = json.dumps(facts, separators=(",", ":")).encode()
    np.savez_compressed(path, facts=np.frombuffer(whole, np.uint8), **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
