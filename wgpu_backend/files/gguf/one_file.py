"""Files of Ollama's converter, which have a language model and its tower in one.

The tower has keys below the language model's architecture and other names of tensors. `text_part`
is the language model alone, `own_tower` the tower with the names of llama.cpp's mmproj files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt, prod

import numpy as np

from wgpu_backend.files.gguf.config import Config, Value
from wgpu_backend.files.gguf.parts import TOWER_ARCHITECTURE, TOWER_PREFIXES, FilePart
from wgpu_backend.files.gguf.reader import GGUFFile


@dataclass(frozen=True, slots=True)
class OneFile:
    """The layout of a kind of file.

    Parameters
    ----------
    projector : str
        Value of ``clip.projector_type``.
    names : sequence of (str, str)
        Regular expressions of names in the file and their replacements, applied in order.
    keys : callable
        Returns the tower's keys, without ``clip.``, from those of the file.
    architecture : str or None
        Architecture of the language model, if it differs.
    text_keys : mapping of str to str
        Names of the language model's keys that differ, without the architecture.
    more : callable
        Returns further keys of the language model, without the architecture.
    """

    projector: str
    names: Sequence[tuple[str, str]]
    keys: Callable[[Config], Mapping[str, Value]]
    architecture: str | None = None
    text_keys: Mapping[str, str] = field(default_factory=dict[str, str])
    more: Callable[[Config], Mapping[str, Value]] = lambda _: {}


# Names of SigLIP's and CLIP's layers, as Ollama keeps those of transformers.
SIGLIP = (
    (r"^v\.patch_embedding\.", "v.patch_embd."),
    (r"^v\.position_embedding\.", "v.position_embd."),
    (r"^v\.post_layernorm\.", "v.post_ln."),
    (r"\.layer_norm(\d)\.", r".ln\1."),
    (r"\.attn_output\.", ".attn_out."),
    (r"\.mlp\.fc1\.", ".ffn_up."),
    (r"\.mlp\.fc2\.", ".ffn_down."),
)
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_DEVIATION = (0.26862954, 0.26130258, 0.27577711)


def statistics(mean: Sequence[float], deviation: Sequence[float]) -> dict[str, Value]:
    """Return the keys of the colours' mean and deviation."""
    return {"vision.image_mean": np.array(mean), "vision.image_std": np.array(deviation)}


def _gemma3(config: Config) -> dict[str, Value]:
    rows = config.uint("mm.tokens_per_image", 256, at_least=1)
    patches = config.uint("vision.image_size") // config.uint("vision.patch_size", at_least=1)
    return {
        "vision.projector.scale_factor": patches // isqrt(rows),
        "use_gelu": True,
        **statistics([0.5] * 3, [0.5] * 3),
    }


def _qwen25vl(config: Config) -> dict[str, Value]:
    return {"use_silu": True, **statistics(_CLIP_MEAN, _CLIP_DEVIATION)}


def _mistral3(config: Config) -> dict[str, Value]:
    return {
        "vision.spatial_merge_size": config.uint("spatial_merge_size", 2, at_least=1),
        "vision.projector.layer_norm_epsilon": config.float("attention.layer_norm_rms_epsilon"),
        # Queries and keys keep their published order.
        "vision.rope.interleaved": False,
        **statistics(_CLIP_MEAN, _CLIP_DEVIATION),
    }


def _llama4(config: Config) -> dict[str, Value]:
    ratio = config.float("vision.pixel_shuffle_ratio", 0.5)
    return {
        "vision.projector.scale_factor": round(1 / ratio) if ratio > 0 else 0,
        **statistics([0.5] * 3, [0.5] * 3),
    }


def _mllama(config: Config) -> dict[str, Value]:
    return {
        "vision.feed_forward_activation": "gelu_erf",
        **statistics(_CLIP_MEAN, _CLIP_DEVIATION),
    }


def _picture_rows(config: Config) -> dict[str, Value]:
    """Return the most rows of a picture, for whose keys and values the cache has room."""
    patches = config.uint("vision.image_size") // config.uint("vision.patch_size", at_least=1)
    rows = config.uint("vision.max_num_tiles", 4, at_least=1) * (patches**2 + 1)
    return {"attention.cross_attention_rows": rows}


LAYOUTS: dict[str, OneFile] = {
    "mllama": OneFile(
        "mllama",
        [
            (r"\.attn_output\.", ".attn_out."),
            (r"\.attn_norm\.", ".ln1."),
            (r"\.ffn_norm\.", ".ln2."),
        ],
        _mllama,
        more=_picture_rows,
    ),
    "mistral3": OneFile(
        "pixtral",
        [
            (r"^v\.patch_conv\.", "v.patch_embd."),
            (r"^v\.encoder_norm\.", "v.pre_ln."),
            (r"\.attn_output\.", ".attn_out."),
            (r"\.attn_norm\.", ".ln1."),
            (r"\.ffn_norm\.", ".ln2."),
            (r"^mm\.norm\.", "mm.input_norm."),
            (r"^mm\.linear_", "mm."),
            (r"^mm\.patch_merger\.merging_layer\.", "mm.patch_merger."),
        ],
        _mistral3,
    ),
    "llama4": OneFile(
        "llama4",
        [
            (r"^v\.class_embedding$", "v.class_embd"),
            (r"^v\.positional_embedding_vlm$", "v.position_embd.weight"),
            (r"^v\.patch_embedding\.", "v.patch_embd."),
            (r"^v\.layernorm_(pre|post)\.", r"v.\1_ln."),
            (r"\.attn_output\.", ".attn_out."),
            (r"\.attn_norm\.", ".ln1."),
            (r"\.ffn_norm\.", ".ln2."),
            (r"^v\.vision_adapter\.mlp\.fc(\d)\.", r"mm.model.mlp.\1."),
            (r"\.mlp\.fc1\.", ".ffn_up."),
            (r"\.mlp\.fc2\.", ".ffn_down."),
            (r"^mm\.linear_1\.", "mm.model.fc."),
        ],
        _llama4,
    ),
    "gemma3": OneFile("gemma3", [*SIGLIP, (r"^mm\.mm_", "mm.")], _gemma3),
    "qwen25vl": OneFile(
        "qwen2.5vl_merger",
        [
            (r"^v\.patch_embd_0\.weight$", "v.patch_embd.weight"),
            (r"^v\.patch_embd_1\.weight$", "v.patch_embd.weight.1"),
            (r"^v\.merger\.ln_q\.", "v.post_ln."),
            (r"^v\.merger\.mlp\.", "mm."),
        ],
        _qwen25vl,
        architecture="qwen2vl",
        text_keys={"rope.mrope_section": "rope.dimension_sections"},
    ),
}


def _is_towers(name: str) -> bool:
    return name.startswith(TOWER_PREFIXES)


def has_tower(file: GGUFFile) -> bool:
    """Return whether a file of a language model has a tower of a known layout."""
    known = file.metadata.get("general.architecture") in LAYOUTS
    return known and any(map(_is_towers, file.tensors))


def text_part(file: GGUFFile) -> GGUFFile:
    """Return the language model of a file; the file itself if it has no tower."""
    if not has_tower(file):
        return file
    own = file.config.architecture
    layout = LAYOUTS[own]
    to = layout.architecture or own
    metadata: dict[str, Value] = {}
    for key, value in file.metadata.items():
        prefix, _, rest = key.partition(".")
        if prefix != own:
            metadata[key] = value
        elif not rest.startswith("vision."):
            metadata[f"{to}.{layout.text_keys.get(rest, rest)}"] = value
    metadata["general.architecture"] = to
    metadata |= {f"{to}.{key}": value for key, value in layout.more(file.config).items()}
    names = {name: name for name in file.tensors if not _is_towers(name)}
    return FilePart(file, metadata, names, owns=True)


def own_tower(file: GGUFFile) -> GGUFFile | None:
    """Return the tower of a file that `text_part` made, while that is open; None if it has none."""
    if not isinstance(file, FilePart) or not has_tower(file.whole):
        return None
    return _make_tower(file.whole, file.whole.config.uint("embedding_length"), owns=False)


def is_lone_tower(file: GGUFFile) -> bool:
    """Return whether a file has only the tower, as Ollama published Llama 3.2 Vision at first."""
    return has_tower(file) and "token_embd.weight" not in file.tensors


def lone_tower(file: GGUFFile) -> GGUFFile:
    """Return the tower of a file that has nothing else; closing it closes the file."""
    return _make_tower(file, file.config.uint("vision.projection_dim", at_least=1), owns=True)


def _make_tower(whole: GGUFFile, cols: int, *, owns: bool) -> GGUFFile:
    """Return the tower of a file, whose rows have `cols` columns."""
    layout = LAYOUTS[whole.config.architecture]
    config = whole.config
    prefix = f"{config.architecture}."
    metadata: dict[str, Value] = {
        "general.architecture": TOWER_ARCHITECTURE,
        f"{TOWER_ARCHITECTURE}.has_vision_encoder": True,
        f"{TOWER_ARCHITECTURE}.projector_type": layout.projector,
    }
    for key, value in whole.metadata.items():
        if key.startswith(prefix + "vision."):
            metadata[f"{TOWER_ARCHITECTURE}.{key.removeprefix(prefix)}"] = value
    keys = {**layout.keys(config), "vision.projection_dim": cols}
    metadata |= {f"{TOWER_ARCHITECTURE}.{key}": value for key, value in keys.items()}
    names = {_rename(layout, name): name for name in whole.tensors if _is_towers(name)}
    shapes = {
        name: (whole.tensors[old].shape[0], prod(whole.tensors[old].shape[1:]))
        for name, old in names.items()
        if name.startswith("v.patch_embd.weight")
    }
    width = config.uint("vision.embedding_length", 1, at_least=1)
    for name, old in names.items():
        # A row for each tile or patch, so that a large table can be split between rows.
        if name.endswith("tile_position_embd.weight"):
            shapes[name] = (prod(whole.tensors[old].shape) // width, width)
    return FilePart(whole, metadata, names, shapes, owns=owns)


def _rename(layout: OneFile, name: str) -> str:
    for pattern, to in layout.names:
        name = re.sub(pattern, to, name)
    return name
