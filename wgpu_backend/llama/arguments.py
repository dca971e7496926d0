"""Arguments of `Llama`: ignored and refused options, logits processors and stopping criteria."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import OptionError, describe
from wgpu_backend.llama.constants import (
    GGML_TYPE_F16,
    GGML_TYPE_F32,
    GGML_TYPE_Q4_0,
    GGML_TYPE_Q8_0,
)
from wgpu_backend.ml.placement import PlacementOptions
from wgpu_backend.ml.placement_arguments import parse_flag, parse_peer_layers, parse_split
from wgpu_backend.ops.sampling.host.options import nearest, whole_number

Ids = NDArray[np.intc]
Scores = NDArray[np.single]
LogitsProcessor = Callable[[Ids, Scores], Scores]
StoppingCriteria = Callable[[Ids, Scores], bool]
Processors = LogitsProcessor | Sequence[LogitsProcessor]
"""One function, or several that are applied one after the other."""

# Where and how llama.cpp computes; answers do not depend on them.
IGNORED = (
    "use_mmap", "use_mlock", "n_ubatch",
    "n_threads", "n_threads_batch", "flash_attn", "swa_full",
    "no_perf", "numa", "lora_base", "f16_kv", "mul_mat_q", "low_vram",
)  # fmt: skip

# Arguments that change answers and are not supported, with the values that change nothing, which
# programs may pass. Errors suggest the first value.
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
_CACHE_TYPES = {
    None: "f16",
    GGML_TYPE_F32: "f32",
    GGML_TYPE_F16: "f16",
    GGML_TYPE_Q4_0: "q4_0",
    GGML_TYPE_Q8_0: "q8_0",
}


# llama.h's split modes by number; rows of a weight are never divided between devices.
_SPLIT_MODES = {0: "none", 1: "layer"}


def make_placement(
    n_gpu_layers: int = -1,
    split_mode: int = 1,
    main_gpu: int = 0,
    tensor_split: Sequence[float] | None = None,
    *,
    offload_kqv: bool = True,
    op_offload: bool | None = None,
) -> PlacementOptions | None:
    """Return how layers are placed on devices, from llama-cpp-python's arguments.

    Its defaults are those of loading: as many layers as fit, on the best devices.

    Returns
    -------
    PlacementOptions or None
        None if all are defaults.

    Raises
    ------
    OptionError
        A value is of the wrong kind or out of range.
    """
    layers = parse_peer_layers(n_gpu_layers, "n_gpu_layers")
    mode = _SPLIT_MODES.get(whole_number("split_mode", split_mode))
    if mode is None:
        known = ", ".join(f"{number} ({name})" for number, name in _SPLIT_MODES.items())
        raise OptionError(f"split_mode: {split_mode}, needs one of {known}")
    main = whole_number("main_gpu", main_gpu)
    shares = parse_split(tensor_split)
    # Zeros alone stand for no split, as in llama.cpp.
    shares = shares if any(shares) else ()
    on_gpu = _read_flag("offload_kqv", offload_kqv)
    computed = None if op_offload is None else _read_flag("op_offload", op_offload)
    if layers == "auto" and mode == "layer" and not shares and on_gpu and computed is not False:
        return None
    return PlacementOptions(
        layers,
        shares,
        main if mode == "none" else None,
        "none" if mode == "none" else "layer",
        capped=True,
        # What llama.cpp does by default, so not an order: other devices leave layers to the CPU.
        op_offload=None if computed else computed,
        kv_offload=on_gpu,
    )


def _read_flag(name: str, value: object) -> bool:
    """Return a flag, which in C is a number."""
    return bool(value) if type(value) is int else parse_flag(name, value)


def require_known_arguments(arguments: Mapping[str, object]) -> None:
    """Raise if an argument that has no effect here would change answers in llama-cpp-python.

    Raises
    ------
    OptionError
        An argument has an unknown name, or a value that is not supported.
    """
    for name, value in arguments.items():
        if name in IGNORED:
            continue
        if name not in NEUTRAL:
            raise OptionError(f"Llama: {name!r} is unknown{nearest(name, [*IGNORED, *NEUTRAL])}")
        if value not in NEUTRAL[name]:
            raise OptionError(
                f"{name}: {describe(value)} is not supported, and ignoring it would change "
                f"answers; leave it out, or give {NEUTRAL[name][0]!r}"
            )


def choose_cache_type(type_k: int | None, type_v: int | None) -> str:
    """Return the element type of the cache for ggml's numbers.

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
    """Raise for sampling options that llama.cpp has removed.

    Raises
    ------
    OptionError
        A sampling option has a value that changed tokens.
    """
    if tfs_z != 1.0:
        raise OptionError(f"tfs_z: {tfs_z}, llama.cpp has removed tail-free sampling; give 1.0")
    if not penalize_nl:
        raise OptionError(
            "penalize_nl: False, llama.cpp penalises line breaks like all tokens; leave it out"
        )


def require_no_function_call(arguments: Mapping[str, object]) -> None:
    """Raise if a chat requires a function call: answers are not parsed here.

    Raises
    ------
    OptionError
        ``function_call`` or ``tool_choice`` requires one.
    """
    for name in ("function_call", "tool_choice"):
        if arguments[name] not in (None, "none", "auto"):
            raise OptionError(
                f"{name}: function calls are not parsed here; get the arguments with a "
                "response_format, or serve the model with `wgpu-backend serve`"
            )


class LogitsProcessorList(list[LogitsProcessor]):
    """A list of functions that change logits, applied one after the other."""

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        """Return the logits after the last function."""
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


class StoppingCriteriaList(list[StoppingCriteria]):
    """A list of functions that end a generation."""

    def __call__(self, input_ids: Ids, logits: Scores) -> bool:
        """Return whether one of the functions ends the generation."""
        # All are called, as in llama-cpp-python.
        results = [bool(each(input_ids, logits)) for each in self]
        return any(results)


class MinTokensLogitsProcessor:
    """A processor that excludes a token until enough others were generated."""

    def __init__(self, min_tokens: int, token_eos: int) -> None:
        self.min_tokens = min_tokens
        self.token_eos = token_eos
        self.prompt_tokens: int | None = None

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        """Return the logits; exclude the token until enough tokens were generated."""
        # The first call has the prompt alone.
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores


def combine_processors(
    processors: Processors | None, biases: Mapping[int, float] | None = None
) -> LogitsProcessor | None:
    """Return one function for processors and for the biases that are added after them."""
    if not biases:
        if processors is None or callable(processors):
            return processors
        return LogitsProcessorList(processors)
    processor = combine_processors(processors)
    ids = np.array([int(token) for token in biases])
    values = np.array([float(bias) for bias in biases.values()], np.single)

    def add_biases(_: Ids, scores: Scores) -> Scores:
        if ids.min() < 0 or ids.max() >= len(scores):
            raise OptionError(f"logit_bias: token {ids.max()}, the vocabulary has {len(scores)}")
        changed = scores.copy()
        changed[ids] += values
        return changed

    return LogitsProcessorList([*([processor] if processor else []), add_biases])


def combine_criteria(
    criteria: StoppingCriteria | Sequence[StoppingCriteria] | None,
) -> StoppingCriteria | None:
    """Return one function for criteria that may be a plain list."""
    return criteria if criteria is None or callable(criteria) else StoppingCriteriaList(criteria)
