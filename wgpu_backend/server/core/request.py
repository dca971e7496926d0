"""Completion requests, in one form for every API, and the HTTP status of errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wgpu_backend.engine.batching.request import RequestFields
from wgpu_backend.engine.media import Part
from wgpu_backend.errors import (
    BackendError,
    CacheFull,
    ContextFull,
    DTypeError,
    GGUFError,
    ModelNotFound,
    NoDeviceLeft,
    OptionError,
    OutOfMemory,
    QueueFull,
    StoreError,
    TemplateError,
)
from wgpu_backend.files.store.pull import RegistryFailed
from wgpu_backend.ops.plugins import describe_mistake
from wgpu_backend.text.grammar import Grammar

# Of the `Retry-After` header: a slot may be free soon.
RETRY_SECONDS = 1
_LARGER_CONTEXT = (
    "the context is num_ctx in options of Ollama's routes, serve --num-ctx or OLLAMA_CONTEXT_LENGTH"
)
_BAD_REQUEST = (ContextFull, OptionError, TemplateError, DTypeError, StoreError, GGUFError)
_BUSY = (QueueFull, CacheFull, OutOfMemory, NoDeviceLeft)
# Ollama's options that configure another engine, that it no longer has, or that loading takes.
_WITHOUT_MEANING = {
    "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread", "numa", "use_mlock", "low_vram",
    "f16_kv", "vocab_only", "logits_all", "penalize_newline", "tfs_z",
    "draft_num_predict", "rope_frequency_base", "rope_frequency_scale", "num_gqa", "embedding_only",
}  # fmt: skip
# Beyond these ranges, options have the effect of the nearer end.
_SOFT: Mapping[str, tuple[float, float]] = {
    "top_k": (0, 1 << 24), "temperature": (0, 100), "top_p": (0, 1), "min_p": (0, 1),
    "typical_p": (0, 1), "dry_multiplier": (0, 100), "dry_base": (0, 100),
    "dry_allowed_length": (0, 1 << 24), "xtc_probability": (0, 1), "xtc_threshold": (0, 1),
    "top_n_sigma": (-1, 1000), "dynatemp_range": (0, 100), "dynatemp_exponent": (0, 100),
    "min_keep": (0, 1 << 24),
}  # fmt: skip


class RequestError(Exception):
    """A request that cannot be served.

    Parameters
    ----------
    status : int
        Of HTTP.
    details : mapping
        Machine-readable details, for APIs that have them.
    """

    def __init__(self, status: int, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.details = details


def get_http_status(error: Exception) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, ModelNotFound):
        return 404
    # The registry failed, for which this server is a gateway.
    if isinstance(error, RegistryFailed):
        return 502
    if isinstance(error, _BUSY):
        return 503
    return 400 if isinstance(error, _BAD_REQUEST) else 500


def get_client_message(error: Exception) -> str:
    """Return the message of an error for a client; of unexpected errors only their type.

    Errors in a file of `--import` include its line.
    """
    if mistake := describe_mistake(error):
        return mistake
    if isinstance(error, ContextFull) and error.tokens is not None:
        return f"{error} ({_LARGER_CONTEXT})"
    if isinstance(error, BackendError | RequestError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # Other messages may have data of other users or paths of this machine.
    return f"internal error: {type(error).__name__}"


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request for a completion: the fields of all APIs by one name.

    `make_engine_request` makes the engine's request of it, for a loaded model.

    Parameters
    ----------
    messages : sequence of mappings or None
        A conversation; None to continue `prompt` without a template. Pictures and sounds are parts
        or ``images``, see `engine.media.Illustrations`, as bytes.
    options : mapping
        By Ollama's names.
    usual : mapping
        Defaults of its API, by Ollama's names; the operator's and the request's options override.
    engine : mapping
        Fields of the engine's request that do not depend on the model, passed on as they are.
    before : sequence of int
        Tokens of the conversation so far, before the messages.
    think : bool, str or None
        None for the model's default.
    optional_think : str
        Name of the field that asks for reasoning, to ignore it for models that cannot reason; empty
        to refuse it.
    raw_thoughts : bool or None
        Leave reasoning, with its tags, in the text; None for the operator's default.
    truncate : bool
        Leave out the oldest messages if the context has no room.
    cut : bool
        Leave out the middle of a prompt that is still too long.
    shift : bool
        Drop the oldest tokens when the context is full, and continue.
    echo : bool
        Return the prompt before the answer, with the log probabilities of its tokens if those
        are requested.
    best : int
        How many of the choices to return, the most likely first; 0 for all, in their order.
    grammar : Grammar or None
        Constraint of the visible text.
    must_call : sequence of mappings
        Those of `tools` of which the answer must call one.
    one_call : bool
        End the answer after its first call.
    template : mapping
        Variables of the model's own template.
    slot : int or None
        Number by which its tokens may be saved or erased.
    spelled : bool
        Spell control tokens out in the text.
    media : sequence of Part
        Pictures and sounds of `prompt`, as bytes.
    """

    messages: Sequence[Mapping[str, Any]] | None
    prompt: str | Sequence[int] = ""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    usual: Mapping[str, Any] = field(default_factory=dict[str, Any])
    engine: RequestFields = field(default_factory=RequestFields)
    before: Sequence[int] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    think: bool | str | None = None
    optional_think: str = ""
    raw_thoughts: bool | None = False
    truncate: bool = True
    cut: bool = False
    shift: bool = False
    echo: bool = False
    best: int = 0
    grammar: Grammar | None = None
    must_call: Sequence[Mapping[str, Any]] = ()
    one_call: bool = False
    template: Mapping[str, Any] = field(default_factory=dict[str, Any])
    slot: int | None = None
    spelled: bool = False
    media: Sequence[Part] = ()


def drop_meaningless(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without nulls, and without those that have no meaning here."""
    given = ((name, value) for name, value in options.items() if value is not None)
    return {name: value for name, value in given if name not in _WITHOUT_MEANING}


def clamp_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Clamp options to their range; beyond its ends they mean the same in llama.cpp.

    A ``num_predict`` of 0 is no limit, as in Ollama.
    """
    return {name: _clamp(name, value) for name, value in options.items()}


def _clamp(name: str, value: object) -> object:
    if name == "num_predict" and str(value) == "0":
        return -1
    if name not in _SOFT or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    least, most = _SOFT[name]
    return least if value < least else min(value, most)
