"""Arguments of llama-cpp-python's Llama: taken, of no consequence, or refused."""

from __future__ import annotations

from collections.abc import Mapping

from wgpu_backend.engine.arguments import shown
from wgpu_backend.errors import OptionError
from wgpu_backend.ops.sampling.host.options import nearest

# Where and how llama.cpp computes; answers are the same whatever they are.
HARMLESS = (
    "n_gpu_layers", "split_mode", "main_gpu", "tensor_split", "use_mmap", "use_mlock", "n_ubatch",
    "n_threads", "n_threads_batch", "offload_kqv", "flash_attn", "op_offload", "swa_full",
    "no_perf", "numa", "lora_base", "f16_kv", "mul_mat_q", "low_vram",
)  # fmt: skip

# Other answers would come without them: the values that change nothing.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "kv_overrides": (None, {}),
    "rope_scaling_type": (None, -1),
    "attention_type": (None, -1),
    "rope_freq_base": (0.0,),
    "rope_freq_scale": (0.0,),
    "yarn_ext_factor": (-1.0,),
    "yarn_attn_factor": (1.0, -1.0),
    "yarn_beta_fast": (32.0, -1.0),
    "yarn_beta_slow": (1.0, -1.0),
    "yarn_orig_ctx": (0,),
    "draft_model": (None,),
    "tokenizer": (None,),
    "spm_infill": (False,),
}
_CACHE_TYPES = {None: "f16", 0: "f32", 1: "f16", 2: "q4_0", 8: "q8_0"}  # by ggml's numbers


def require_known(given: Mapping[str, object]) -> None:
    """Refuse arguments that would be lost, and change what is answered.

    Raises
    ------
    OptionError
        There is one, or one of no known name.
    """
    for name, value in given.items():
        if name in HARMLESS:
            continue
        if name not in NEUTRAL:
            raise OptionError(f"Llama: {name!r} is unknown{nearest(name, [*HARMLESS, *NEUTRAL])}")
        if value not in NEUTRAL[name]:
            raise OptionError(
                f"{name}: {shown(value)} is not supported, and answers would be others without it; "
                f"leave it out, or give {NEUTRAL[name][0]!r}"
            )


def cache_type(type_k: int | None, type_v: int | None) -> str:
    """Type of a cache, of ggml's numbers.

    Raises
    ------
    OptionError
        There is no such cache, or keys and values differ.
    """
    if type_k not in _CACHE_TYPES or _CACHE_TYPES.get(type_v) != _CACHE_TYPES[type_k]:
        raise OptionError(
            f"type_k: {type_k}, type_v: {type_v}, needs the same of 0 (f32), 1 (f16), 2 (q4_0), "
            "8 (q8_0) for both"
        )
    return _CACHE_TYPES[type_k]


def require_neutral_sampling(tfs_z: float, penalize_nl: bool) -> None:
    """Refuse what llama.cpp had once.

    Raises
    ------
    OptionError
        It is asked for.
    """
    if tfs_z != 1.0:
        raise OptionError(f"tfs_z: {tfs_z}, llama.cpp has no tail-free sampling any more; give 1.0")
    if not penalize_nl:
        raise OptionError("penalize_nl: False, llama.cpp penalises line breaks like all; leave it")
