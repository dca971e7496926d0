"""Types of the tensors of a file: llama.cpp's mixes, by its names.

A mix such as Q4_K_M has one type for most matrices and another for those that are more sensitive to
errors: values of attention, the last product of feed-forward blocks in some layers, the output. The
rules, and the order that tensors are counted in, are llama.cpp's (``llama-quant.cpp``), so that
files have the same types.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from gguf import LlamaFileType

from wgpu_backend.dtypes import (
    BF16,
    F16,
    F32,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    Q2_0,
    Q2_K,
    Q3_K,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    TQ1_0,
    TQ2_0,
    DType,
)  # fmt: skip
from wgpu_backend.errors import OptionError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.files.gguf.header import TensorInfo
from wgpu_backend.files.gguf.reader import GGUFFile

_LAYER = re.compile(r"blk\.(\d+)\.")
# Parts of the names of matrices that keep their type: small or sensitive ones, or lookup tables.
_KEPT = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel",
    "per_layer_model_proj", "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight",
    "indexer.q_proj.weight", "time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight",
    "time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight",
    "time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight",
    "time_mix_g2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight", "attn_rel_b.weight", ".position_embd", "sam.pos_embd",
    "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger", "a.rvq.codebook",
    "mm.a.code_embd",
)  # fmt: skip
_KEPT_WHOLE = ("position_embd.weight", "token_types.weight")
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
# The role of a matrix, by the first of these parts in its name.
_ROLES = (
    ("attn_qkv.weight", "values"),
    ("attn_kv_b.weight", "values"),
    ("attn_v.weight", "values"),
    ("attn_k.weight", "keys"),
    ("attn_q.weight", "queries"),
    ("attn_output.weight", "projection"),
    ("ffn_up", "up"),
    ("ffn_gate", "gate"),
    ("ffn_down", "down"),
)
# Replacements if rows are not a multiple of the block.
_NARROWER: Mapping[DType, DType] = MappingProxyType(
    {
        IQ4_XS: IQ4_NL,
        Q2_K: Q4_0,
        Q3_K: Q4_0,
        Q2_0: Q4_0,
        TQ1_0: Q4_0,
        TQ2_0: Q4_0,
        Q4_K: Q5_0,
        Q5_K: Q5_1,
        Q6_K: Q8_0,
    }
)


@dataclass(frozen=True, slots=True)
class Mix:
    """A quantisation of a whole file.

    Parameters
    ----------
    name : str
        llama.cpp's name: ``Q4_K_M``.
    number : int
        Value of ``general.file_type``.
    dtype : DType
        Type of most matrices.
    """

    name: str
    number: int
    dtype: DType


def _number(name: str) -> int:
    known = "ALL_F32" if name == "F32" else f"MOSTLY_{name}"
    return _Q2_0 if name == "Q2_0" else LlamaFileType[known].value


# A file type that gguf-py lacks.
_Q2_0 = 41
_DTYPES = {
    "F32": F32, "F16": F16, "BF16": BF16, "Q4_0": Q4_0, "Q4_1": Q4_1, "Q5_0": Q5_0, "Q5_1": Q5_1,
    "Q8_0": Q8_0, "Q2_K": Q2_K, "Q2_K_S": Q2_K, "Q3_K_S": Q3_K, "Q3_K_M": Q3_K, "Q3_K_L": Q3_K,
    "Q4_K_S": Q4_K, "Q4_K_M": Q4_K, "Q5_K_S": Q5_K, "Q5_K_M": Q5_K, "Q6_K": Q6_K,
    "IQ4_NL": IQ4_NL, "IQ4_XS": IQ4_XS, "TQ1_0": TQ1_0, "TQ2_0": TQ2_0, "MXFP4_MOE": MXFP4,
    "Q2_0": Q2_0,
}  # fmt: skip
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}
MIXES = tuple(Mix(name, _number(name), dtype) for name, dtype in _DTYPES.items())
_BY_NAME = {mix.name: mix for mix in MIXES}
_NAMES = {
    each.value: each.name.removeprefix("ALL_").removeprefix("MOSTLY_")
    for each in LlamaFileType
    if each is not LlamaFileType.GUESSED
} | {_Q2_0: "Q2_0"}


def file_type(file: GGUFFile) -> str:
    """Return the name of a file's quantisation by its ``general.file_type``: ``Q4_K_M``.

    If the key is missing, a guess, or unknown to llama.cpp, this is the type of most bytes; empty
    if there are no tensors.
    """
    number = file.config.metadata.get("general.file_type")
    named = _NAMES.get(number) if isinstance(number, int) else None
    return named or main_type(file)


def main_type(file: GGUFFile) -> str:
    """Return the type of most bytes of a file's tensors; empty if it has no tensors."""
    nbytes: Counter[str] = Counter()
    for info in file.tensors.values():
        nbytes[info.dtype.name.upper()] += info.nbytes
    return nbytes.most_common(1)[0][0] if nbytes else ""


def find_mix(name: str) -> Mix:
    """Return the mix with a name, any case; ``Q4_K`` is ``Q4_K_M``, as in llama.cpp.

    Raises
    ------
    OptionError
        There is no such mix.
    """
    wanted = name.upper()
    found = _BY_NAME.get(_ALIASES.get(wanted, wanted))
    if found is None:
        raise OptionError(f"type {name!r}: unknown, needs one of {', '.join(_BY_NAME)}")
    return found


def tensor_types(
    mix: Mix, config: Config, tensors: Sequence[TensorInfo], *, weighted: bool
) -> dict[str, DType]:
    """Return the type of each tensor by its name.

    Parameters
    ----------
    mix : Mix
        The requested mix.
    config : Config
        Keys of the file, for its numbers of layers, heads and experts.
    tensors : sequence of TensorInfo
        All tensors of the file.
    weighted : bool
        Whether there is an importance matrix.

    Raises
    ------
    ModelError
        A key is of a wrong type.
    """
    ordered = sorted(tensors, key=lambda info: (_layer(info.name), info.name))
    rules = _Rules(mix, _Facts.of(config, ordered), weighted=weighted)
    return {info.name: rules.dtype(info) for info in ordered}


def _layer(name: str) -> int:
    found = _LAYER.match(name)
    return int(found[1]) if found else -1


@dataclass(frozen=True, slots=True)
class _Facts:
    """The facts about a model that the rules use."""

    falcon: bool
    # llama.cpp's 70B, in which eight heads share their values.
    seventy: bool
    layers: int
    experts: int
    heads_per_kv: int
    # Number of matrices of that role.
    values: int
    tied: bool

    @classmethod
    def of(cls, config: Config, tensors: Sequence[TensorInfo]) -> _Facts:
        name, layers = config.architecture, config.uint("block_count", 0)
        heads = _first(config, "attention.head_count", 0)
        kv = _first(config, "attention.head_count_kv", heads)
        large = {"llama": heads != kv, "qwen2": True, "deci": True, "olmo": True}
        return cls(
            name == "falcon",
            (layers == 80 and large.get(name, False)) or (layers == 68 and name == "jais2"),
            layers,
            config.uint("expert_count", 0),
            heads // kv if kv else 0,
            sum(_role(info.name) == "values" for info in tensors),
            all(info.name != "output.weight" for info in tensors),
        )


def _first(config: Config, key: str, default: int) -> int:
    """Return a number, or the first layer's if each layer has one."""
    return config.ints(key)[0] if config.is_array(key) else config.uint(key, default)


def _role(name: str) -> str:
    if name == "output.weight":
        return "output"
    if name in _EMBEDDINGS:
        return "embedding"
    return next((role for part, role in _ROLES if part in name), "other")


def _is_kept(info: TensorInfo) -> bool:
    """Return whether a tensor keeps its type."""
    dims = len(info.shape) - next((i for i, n in enumerate(info.shape) if n > 1), len(info.shape))
    if dims < 2 or not info.name.endswith("weight") or info.name in _KEPT_WHOLE:
        return True
    return any(part in info.name for part in _KEPT)


@dataclass(slots=True)
class _Rules:
    """The choice of types, for tensors in order."""

    mix: Mix
    facts: _Facts
    weighted: bool
    _seen: dict[str, int] = field(default_factory=dict[str, int])

    def dtype(self, info: TensorInfo) -> DType:
        if _is_kept(info):
            return info.dtype
        base = self.mix.dtype
        return self._fitting(info, self._chosen(info)) if base.quantised else base

    def _fitting(self, info: TensorInfo, dtype: DType) -> DType:
        """Return the type, or the next one whose blocks fit the rows."""
        cols = info.shape[-1]
        if cols % dtype.block == 0:
            return dtype
        narrower = _NARROWER.get(dtype, F16)
        return narrower if cols % narrower.block == 0 else F16

    def _chosen(self, info: TensorInfo) -> DType:
        role, base = _role(info.name), self.mix.dtype
        if role == "output" or (role == "embedding" and self.facts.tied):
            return self._output(info)
        if base is MXFP4:
            return MXFP4 if len(info.shape) > 2 and info.shape[-3] > 1 else Q8_0
        if role == "embedding":
            return Q4_K if base in (TQ1_0, TQ2_0, Q2_0) else base
        if role == "values":
            return self._values(self._next(role))
        if role == "keys":
            return Q8_0 if self.facts.experts == 8 else base
        if role == "down":
            index = self._next(role)
            return self._down(_layer(info.name) if self.facts.experts > 1 else index)
        return self._projection() if role == "projection" else base

    def _next(self, role: str) -> int:
        """Return how many tensors of this role came earlier, and count one more."""
        index = self._seen.get(role, 0)
        self._seen[role] = index + 1
        return index

    def _output(self, info: TensorInfo) -> DType:
        base = self.mix.dtype
        if base in (MXFP4, Q8_0) or self.facts.falcon or info.shape[-1] % base.block:
            return Q8_0
        return Q6_K

    def _values(self, index: int) -> DType:
        if self.facts.experts == 8:
            return Q8_0
        chosen = self._mixed_values(index)
        return Q5_K if self.facts.seventy and chosen in (Q3_K, Q4_K) else chosen

    def _mixed_values(self, index: int) -> DType:
        mix, shared = self.mix, self.facts.heads_per_kv >= 4
        if mix.name == "Q2_K":
            return Q4_K if shared else Q3_K
        if mix.name == "Q3_K_M":
            return Q5_K if index < 2 else Q4_K
        special = {
            "Q2_K_S": (shared, Q4_K),
            "Q3_K_L": (True, Q5_K),
            "IQ4_NL": (shared, Q5_K),
            "IQ4_XS": (shared, Q5_K),
            "Q4_K_S": (index < 4, Q5_K),
            "Q4_K_M": (_more_bits(index, self.facts.values), Q6_K),
            "Q5_K_M": (_more_bits(index, self.facts.values), Q6_K),
        }
        applies, dtype = special.get(mix.name, (False, mix.dtype))
        return dtype if applies else mix.dtype

    def _down(self, layer: int) -> DType:
        layers, falcon, base = self.facts.layers, self.facts.falcon, self.mix.dtype
        first, more = layer < layers // 8, _more_bits(layer, layers)
        if falcon and self.mix.name in ("Q3_K_M", "Q4_K_M"):
            high, low = (Q5_K, Q4_K) if base is Q3_K else (Q6_K, Q5_K)
            return high if layer < layers // 16 else low if more else base
        special = {
            "Q2_K": (True, Q3_K),
            "Q2_K_S": (first, Q4_K),
            "Q3_K_M": (True, Q5_K if layer < layers // 16 else Q4_K),
            "Q3_K_L": (True, Q4_K if falcon else Q5_K),
            "Q4_K_S": (first and not falcon, Q5_K),
            "Q4_K_M": (more, Q6_K),
            "Q5_K_M": (more, Q6_K),
            "IQ4_NL": (first and not self.weighted, Q5_K),
            "IQ4_XS": (first and not self.weighted, Q5_K),
            "Q4_0": (first and self.weighted, Q4_1),
            "Q5_0": (first and self.weighted, Q5_1),
        }
        applies, dtype = special.get(self.mix.name, (False, base))
        return dtype if applies else base

    def _projection(self) -> DType:
        name, base = self.mix.name, self.mix.dtype
        if self.facts.falcon:
            return Q4_K if name == "Q3_K_L" else base
        if self.facts.experts == 8:
            more = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS")
            return Q5_K if name in more else base
        return {"Q2_K": Q3_K, "Q3_K_M": Q4_K, "Q3_K_L": Q5_K}.get(name, base)


def _more_bits(layer: int, layers: int) -> bool:
    """Return whether a layer is in the first or last eighth, or every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
