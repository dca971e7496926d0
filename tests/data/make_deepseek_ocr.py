"""Logits and rows of a tiny DeepSeek-OCR, for `tests/models/test_deepseek_ocr.py`.

Needs transformers with torch. Weights are made from the names of published files::

    python tests/data/make_deepseek_ocr.py tests/data/deepseek_ocr.npz

Transformers 5.24 has DeepSeek-OCR 2, but not the first version. The reference is put together of
its parts: SAM's encoder and the language model are those of DeepSeek-OCR 2, the layers after SAM's
encoder are those of CLIP. Views and the order of rows follow the published code of the first
version.
"""

import re
import sys
from pathlib import Path

import numpy as np
import torch
import transformers as tf
from PIL import Image, ImageOps
from transformers.models.clip.modeling_clip import CLIPEncoder
from transformers.models.deepseek_ocr2 import modeling_deepseek_ocr2 as parts
from transformers.models.deepseek_ocr2.configuration_deepseek_ocr2 import (
    DeepseekOcr2SamVisionConfig,
    DeepseekOcr2TextConfig,
)

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.data.recording import IMAGE, save_recorded, tokenize
from tests.data.tower_weights import make_weights, picture

BASE, TILE, PATCH, WINDOW, GREEDY = 48, 32, 4, 5, 8
MARK = "<image>"
COLS, WIDTH, SAM = 32, 40, 24
# One without tiles, one of a tile's size, and three with tiles in other grids.
SIZES = {"a": (20, 25), "b": (32, 32), "c": (41, 70), "d": (90, 31), "e": (60, 55)}
CASES = {
    "none": ("in the a in a", ""),
    "one": ("<image> in the", "a"),
    "tiles": ("in <image> the", "c"),
    "two": ("the <image> in<image> a", "db"),
}
# Names of the parts by published names.
NAMES = (
    (r"^model\.sam_model\.patch_embed\.proj\.", "sam.patch_embed.projection."),
    (r"^model\.sam_model\.blocks\.(\d+)\.norm(\d)", r"sam.layers.\1.layer_norm\2"),
    (r"^model\.sam_model\.blocks\.", "sam.layers."),
    (r"^model\.sam_model\.neck\.0", "sam.neck.conv1"),
    (r"^model\.sam_model\.neck\.1", "sam.neck.layer_norm1"),
    (r"^model\.sam_model\.neck\.2", "sam.neck.conv2"),
    (r"^model\.sam_model\.neck\.3", "sam.neck.layer_norm2"),
    (r"^model\.sam_model\.net_2", "sam.proj.conv1"),
    (r"^model\.sam_model\.net_3", "sam.proj.conv2"),
    (r"^model\.sam_model\.", "sam."),
    (r"^model\.vision_model\.transformer\.", "clip."),
    (r"^model\.vision_model\.embeddings\.position_embedding\.weight", "positions"),
    (r"^model\.vision_model\.embeddings\.", ""),
    (r"^model\.vision_model\.", ""),
    (r"^model\.projector\.layers", "projector"),
    (r"^model\.(image_newline|view_seperator)", r"\1"),
    (r"^model\.(layers|norm|embed_tokens)", r"text.\1"),
)


class DeepSeekOcr(torch.nn.Module):
    """The tower and the language model."""

    def __init__(self, text, sam, clip, image):
        super().__init__()
        self.image = image
        self.sam = parts.DeepseekOcr2SamVisionEncoder._from_config(sam)
        self.class_embedding = torch.nn.Parameter(torch.zeros(WIDTH))
        places = (BASE // PATCH // 4) ** 2
        self.positions = torch.nn.Parameter(torch.zeros(1 + places, WIDTH))
        self.pre_layrnorm = torch.nn.LayerNorm(WIDTH, eps=1e-5)
        clip._attn_implementation = "eager"
        self.clip = CLIPEncoder(clip)
        self.projector = torch.nn.Linear(2 * WIDTH, COLS)
        self.image_newline = torch.nn.Parameter(torch.zeros(COLS))
        self.view_seperator = torch.nn.Parameter(torch.zeros(COLS))
        self.text = parts.DeepseekOcr2TextModel._from_config(text)
        self.lm_head = torch.nn.Linear(COLS, text.vocab_size, bias=False)

    def views(self, pictures):
        """Return the rows of pictures of one size: (views, side, side, COLS)."""
        values = torch.tensor(np.stack(pictures).astype(np.float32) / 255)
        x = self.sam((values.permute(0, 3, 1, 2) - 0.5) / 0.5).last_hidden_state
        count, _, side, _ = x.shape
        rows = x.flatten(2).transpose(1, 2)
        table = self.positions[1:].reshape(1, BASE // PATCH // 4, -1, WIDTH).permute(0, 3, 1, 2)
        if table.shape[-1] != side:
            table = torch.nn.functional.interpolate(
                table, (side, side), mode="bicubic", antialias=True, align_corners=False
            )
        places = torch.cat([self.positions[:1], table[0].flatten(1).T])
        y = torch.cat([self.class_embedding.expand(count, 1, -1), rows], 1) + places
        y = self.clip(inputs_embeds=self.pre_layrnorm(y)).last_hidden_state[:, 1:]
        return self.projector(torch.cat([y, rows], -1)).reshape(count, side, side, COLS)

    def end_lines(self, x):
        """Append a row to each line: (lines, columns, COLS) to rows."""
        return torch.cat([x, self.image_newline.expand(len(x), 1, -1)], 1).reshape(-1, COLS)

    def encode(self, shown):
        """Return the rows of a picture, and its number of tiles down and across."""
        image = Image.fromarray(shown)
        grid = find_grid(image) if max(image.size) > TILE else None
        whole = ImageOps.pad(image, (BASE, BASE), color=(127, 127, 127))
        found = [self.end_lines(self.views([np.asarray(whole)])[0]), self.view_seperator[None]]
        if grid is not None:
            across, down = grid
            large = np.asarray(image.resize((across * TILE, down * TILE)))
            tiles = [
                large[i * TILE : (i + 1) * TILE, j * TILE : (j + 1) * TILE]
                for i in range(down)
                for j in range(across)
            ]
            rows = self.views(tiles)
            side = rows.shape[1]
            lines = rows.reshape(down, across, side, side, COLS).permute(0, 2, 1, 3, 4)
            found.insert(0, self.end_lines(lines.reshape(down * side, across * side, COLS)))
        return torch.cat(found)

    def forward(self, ids, rows):
        """Return the logits of a prompt; rows are those of all its pictures."""
        x = self.text.embed_tokens(torch.tensor([ids]))
        if rows:
            given = torch.cat(rows)
            # An answer may also have the token.
            x[0, [i for i, token in enumerate(ids) if token == self.image][: len(given)]] = given
        states = self.text(inputs_embeds=x, use_cache=False).last_hidden_state
        return self.lm_head(states)[0]


def find_grid(image):
    """Return columns and rows of tiles: 2 to 9 with nearly the picture's proportions."""
    width, height = image.size
    grids = {(i, j) for i in range(1, 10) for j in range(1, 10) if 2 <= i * j <= 9}
    best, found = float("inf"), (1, 1)
    for across, down in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        apart = abs(width / height - across / down)
        large = width * height > 0.5 * TILE * TILE * across * down
        if apart < best or (apart == best and large):
            best, found = apart, (across, down)
    return found


def published(model):
    """Return shapes by published names, where experts and CLIP's matrices are split otherwise."""
    shapes = {
        "model.sam_model.pos_embed": model.sam.pos_embed.shape,
        "model.vision_model.embeddings.class_embedding": (WIDTH,),
        "model.vision_model.embeddings.patch_embedding.weight": (WIDTH, 3, 2, 2),
        "model.vision_model.embeddings.position_embedding.weight": model.positions.shape,
    }
    for name, value in model.state_dict().items():
        if re.search(r"^sam\.pos_embed|^positions|^class_emb|inv_freq|[kv]_proj\.|gate_up", name):
            if name.startswith("text.layers") and re.search(r"self_attn\.[kv]", name):
                shapes[f"model.{name.removeprefix('text.')}"] = value.shape
            elif "gate_up" in name:
                own = f"model.{name.removeprefix('text.')}".removesuffix("gate_up_proj")
                for number in range(len(value)):
                    for part in ("gate_proj", "up_proj"):
                        shapes[f"{own}{number}.{part}.weight"] = (value.shape[1] // 2, COLS)
            continue
        if "experts.down_proj" in name and "shared" not in name:
            own = f"model.{name.removeprefix('text.')}".removesuffix("down_proj")
            for number in range(len(value)):
                shapes[f"{own}{number}.down_proj.weight"] = value.shape[1:]
            continue
        for old, new in (
            (r"^sam\.patch_embed\.projection", "model.sam_model.patch_embed.proj"),
            (r"^sam\.layers\.(\d+)\.layer_norm(\d)", r"model.sam_model.blocks.\1.norm\2"),
            (r"^sam\.layers", "model.sam_model.blocks"),
            (r"^sam\.neck\.conv1", "model.sam_model.neck.0"),
            (r"^sam\.neck\.layer_norm1", "model.sam_model.neck.1"),
            (r"^sam\.neck\.conv2", "model.sam_model.neck.2"),
            (r"^sam\.neck\.layer_norm2", "model.sam_model.neck.3"),
            (r"^sam\.proj\.conv1", "model.sam_model.net_2"),
            (r"^sam\.proj\.conv2", "model.sam_model.net_3"),
            (r"^clip\.(.*)q_proj", r"model.vision_model.transformer.\1qkv_proj"),
            (r"^clip\.", "model.vision_model.transformer."),
            (r"^pre_layrnorm", "model.vision_model.pre_layrnorm"),
            (r"^projector", "model.projector.layers"),
            (r"^(image_newline|view_seperator)", r"model.\1"),
            (r"^text\.", "model."),
        ):
            name = re.sub(old, new, name)
        times = 3 if "qkv_proj" in name else 1
        shapes[name] = (times * value.shape[0], *value.shape[1:])
    return {name: tuple(shape) for name, shape in shapes.items()}


def fill(model, weights):
    """Set the weights of the parts from those of published names."""
    state, joined = {}, {}
    for name, values in weights.items():
        tensor = torch.tensor(values)
        if "patch_embedding" in name:
            continue
        expert = re.match(r"model\.(.*experts)\.(\d+)\.(gate|up|down)_proj", name)
        if expert:
            joined.setdefault((expert[1], expert[3]), []).append(tensor)
            continue
        for old, new in NAMES:
            name = re.sub(old, new, name)
        if "qkv_proj" in name:
            for part, each in zip("qkv", tensor.chunk(3), strict=True):
                state[name.replace("qkv_proj", f"{part}_proj")] = each
        else:
            state[name] = tensor
    for (name, part), found in joined.items():
        if part == "down":
            state[f"text.{name}.down_proj"] = torch.stack(found)
        elif part == "gate":
            both = torch.stack(found), torch.stack(joined[name, "up"])
            state[f"text.{name}.gate_up_proj"] = torch.cat(both, 1)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert not [name for name in missing if "inv_freq" not in name]


def make_model(vocabulary=IMAGE + 1, image=IMAGE, seed=0, *, layers=2, whole=1):
    """Return the model, shapes by published names, and config.json.

    CLIP has `layers`, and SAM three, of which the one numbered `whole` attends to a whole view.
    """
    language = {
        "hidden_size": COLS, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 4, "intermediate_size": 48, "moe_intermediate_size": 20,
        "n_routed_experts": 4, "n_shared_experts": 2, "num_experts_per_tok": 2, "n_group": 1,
        "topk_group": 1, "topk_method": "greedy", "max_position_embeddings": 256,
        "vocab_size": vocabulary, "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    text = DeepseekOcr2TextConfig(
        **language, mlp_layer_types=["dense", "sparse", "sparse"], rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    sam = DeepseekOcr2SamVisionConfig(
        hidden_size=SAM, output_channels=16, num_hidden_layers=3, num_attention_heads=2,
        image_size=BASE, patch_size=PATCH, window_size=WINDOW, global_attn_indexes=[whole],
        downsample_channels=[28, WIDTH],
    )  # fmt: skip
    clip = tf.CLIPVisionConfig(
        hidden_size=WIDTH, intermediate_size=56, num_hidden_layers=layers, num_attention_heads=2,
        hidden_act="quick_gelu", layer_norm_eps=1e-5,
    )  # fmt: skip
    for each in (text, sam):
        each._attn_implementation = "eager"
    model = DeepSeekOcr(text, sam, clip, image).float().eval()
    shapes = published(model)
    fill(model, make_weights(shapes, seed))
    config = {
        "architectures": ["DeepseekOCRForCausalLM"], "model_type": "DeepseekOCR",
        "candidate_resolutions": [[BASE, BASE]], "global_view_pos": "head", "tile_tag": "2D",
        "language_config": {
            **language, "first_k_dense_replace": 1, "kv_lora_rank": None, "q_lora_rank": None,
            "lm_head": True, "rm_head": False, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0,
            "v_head_dim": 0, "use_mla": False, "architectures": ["DeepseekV2ForCausalLM"],
        },
        "projector_config": {
            "input_dim": 2 * WIDTH, "n_embed": COLS, "model_type": "mlp_projector",
            "projector_type": "linear",
        },
        "vision_config": {
            "image_size": BASE, "mlp_ratio": 3.7362, "model_name": "deeplip_b_l",
            "model_type": "vision", "window_size": WINDOW,
            "width": {
                "clip-l-14-224": {"heads": 2, "image_size": 224, "layers": layers, "patch_size": 14,
                                  "width": WIDTH},
                "sam_vit_b": {"downsample_channels": [28, WIDTH], "global_attn_indexes": [whole],
                              "heads": 2, "layers": 3, "width": SAM},
            },
        },
    }  # fmt: skip
    return model, shapes, config


@torch.no_grad()
def main(path):
    model, shapes, config = make_model()
    rows = {name: model.encode(picture(*size)) for name, size in SIZES.items()}
    arrays = {f"rows {name}": each.numpy() for name, each in rows.items()}
    for name, (text, shown) in CASES.items():
        ids, numbers = [], iter(shown)
        for token in tokenize(text, MARK):
            ids += [IMAGE] * len(rows[next(numbers)]) if token == IMAGE else [token]
        given = [rows[each] for each in shown]
        arrays[f"logits {name}"] = model(ids, given).numpy()
        for _ in range(GREEDY):
            ids.append(int(model(ids, given)[-1].argmax()))
        arrays[f"tokens {name}"] = np.array(ids, np.int32)
    save_recorded(
        path,
        arrays,
        config=config,
        processor={"tile_size": TILE},
        shapes=shapes,
        sizes=SIZES,
        cases=CASES,
    )


if __name__ == "__main__":
    main(sys.argv[1])
