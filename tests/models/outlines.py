"""Models from outlines: keys and shapes of a converted file, weights drawn by their names."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.builders import add_tokenizer
from tests.models.related import RELATED

DATA = Path(__file__).parent.parent / "data"
OUTLINES, LOGITS = DATA / "zoo.json", DATA / "logits" / "zoo.npz"
TOKENS = np.random.default_rng(0).integers(4, 250, 20).tolist()
ROWS = (0, 1, 8, 19)
# Parts of names of matrices that converters keep in f32.
KEPT = ("norm", "ffn_gate_inp", "position_embd", "token_types", "conv1d", "conv.", "time_mix_",
        "rope_", "rel_b", "altup_")  # fmt: skip
UNSCALED = ("gemma3n", "gemma4")  # scores, which trained queries keep small


def outlines() -> dict[str, dict[str, Any]]:
    """Outlines by the name of the model: those of the tool, and related ones."""
    found = json.loads(OUTLINES.read_text(encoding="utf-8"))
    return found | {name: make(found) for name, make in RELATED.items()}


def written(path: Path, outline: dict[str, Any], *, narrow: bool = False) -> Path:
    """Write the model of an outline; with `narrow`, its matrices in f16."""
    writer = gguf.GGUFWriter(path, outline["architecture"])
    for key, value in outline["keys"].items():
        _add(writer, key, value)
    add_tokenizer(writer, "gpt-2", marks="cls.output.weight" in outline["weights"])
    if types := outline["weights"].get("token_types.weight"):
        writer.add_token_type_count(types[0])
    tied = "output.weight" not in outline["weights"]
    layers = range(outline["keys"][f"{outline['architecture']}.block_count"])
    for name, shape in outline["weights"].items():
        for one in [name.replace("*", str(i)) for i in layers] if "*" in name else [name]:
            values = drawn(one, shape, tied=tied)
            soften = outline["architecture"] in UNSCALED and one.endswith("attn_q_norm.weight")
            values = values * np.float32(0.15) if soften else values
            writer.add_tensor(one, narrowed(one, values) if narrow else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def narrowed(name: str, values: np.ndarray) -> np.ndarray:
    """Values in f16, unless converters keep the weight in f32."""
    matrix = values.ndim > 1 and name.endswith(".weight")
    return values.astype("f2") if matrix and not any(p in name for p in KEPT) else values


def a_reranker(path: Path) -> Path:
    """Write BERT with what scores a text."""
    outline = outlines()["bert"]
    outline["keys"]["bert.pooling_type"] = 4
    outline["weights"] |= {"cls.weight": [64, 64], "cls.bias": [64]}
    outline["weights"] |= {"cls.output.weight": [1, 64], "cls.output.bias": [1]}
    return written(path, outline)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    kinds |= {str: writer.add_string, list: writer.add_array}
    kinds[type(value)](key, value)


def drawn(name: str, shape: list[int], *, tied: bool) -> np.ndarray:
    """Values of a weight, of a size that keeps what goes through it about as large as it was."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.startswith("rope_"):
        values = np.linspace(1, 1.5 if "short" in name else 4, shape[0])
    elif "norm" in name and name.endswith("weight"):
        values = rng.uniform(0.5, 1.5, shape)
    elif len(shape) == 1:
        values = rng.normal(0, 0.3, shape)
    else:
        large = 3.0 if name == "output.weight" or (tied and name == "token_embd.weight") else 1.2
        values = rng.normal(0, large / math.sqrt(shape[-1]), shape)
        values = (
            values * math.sqrt(shape[-1]) if name == "token_embd.weight" and not tied else values
        )
    return values.astype(np.float32)
