"""Layouts of models whose tensors' types llama.cpp chose for `tests/data/mixes.json`.

The file was made with llama.cpp's own rules (``llama-quant.cpp``), compiled apart from its loader.
By layout and mix it has the tensors that are of another type than the mix, with their layers;
``weighted`` where an importance matrix changes something. What stays in F32 it leaves out.
"""

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from wgpu_backend.dtypes import F32
from wgpu_backend.files.gguf.config import Config, Value
from wgpu_backend.files.gguf.header import TensorInfo

FILE = Path(__file__).parents[2] / "data" / "mixes.json"
DENSE = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
FUSED = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
EXPERTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp")
OF_EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


@dataclass(frozen=True)
class Layout:
    """Matrices of each layer, and the keys that rules look at."""

    architecture: str
    layers: int
    matrices: tuple[str, ...] = DENSE
    of_experts: tuple[str, ...] = ()
    cols: int = 512
    heads: int = 8
    kv_heads: int = 2
    tied: bool = False
    keys: dict[str, Value] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """Keys of a file of this layout."""
        prefix = f"{self.architecture}."
        counts = {"block_count": self.layers, "attention.head_count": self.heads}
        counts |= {"attention.head_count_kv": self.kv_heads} | self.keys
        named = {prefix + key: value for key, value in counts.items()}
        return Config("layout", {"general.architecture": self.architecture} | named)

    @property
    def metadata(self) -> dict[str, Value]:
        """The same as a mapping."""
        return dict(self.config.metadata)


LAYOUTS = {
    "llama": Layout("llama", 33),
    "narrow": Layout("llama", 16, cols=96, heads=4, kv_heads=4),
    "odd": Layout("llama", 2, cols=40),
    "70b": Layout("llama", 80, heads=64, kv_heads=8, tied=True),
    "falcon": Layout("falcon", 32, FUSED, kv_heads=1, tied=True),
    "mixtral": Layout("llama", 32, EXPERTS, OF_EXPERTS, keys={"expert_count": 8}),
    "qwen3moe": Layout("qwen3moe", 24, EXPERTS, OF_EXPERTS, keys={"expert_count": 16}),
}


def infos(layout: Layout) -> list[TensorInfo]:
    """Tensors in F32, layers in order; matrices are square, norms and biases one row."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (64, layout.cols)}
    for layer in range(layout.layers):
        block = f"blk.{layer}."
        shapes[f"{block}attn_norm.weight"] = (layout.cols,)
        shapes |= {f"{block}{name}.weight": (64, layout.cols) for name in layout.matrices}
        shapes |= {f"{block}{name}.weight": (4, 64, layout.cols) for name in layout.of_experts}
        shapes[f"{block}ssm_conv1d.weight"] = (64, layout.cols)
        shapes[f"{block}attn_q_norm.weight"] = (8, layout.cols)
    shapes["output_norm.weight"] = (layout.cols,)
    if not layout.tied:
        shapes["output.weight"] = (64, layout.cols)
    return [TensorInfo(name, F32, shape, 0, 0) for name, shape in shapes.items()]


@cache
def recorded() -> dict[str, dict[str, dict[str, str]]]:
    """Types other than the mix's by layout and mix: layers of each kind of tensor, as ranges."""
    return json.loads(FILE.read_text())
