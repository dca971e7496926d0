"""The engine of a worker, with its draft model."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from wgpu_backend.engine.batching.engine import Engine
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.loading import load
from wgpu_backend.errors import BackendError, OptionError
from wgpu_backend.ml.backend import Progress
from wgpu_backend.server.worker.messages import NGRAM, LoadSpec

_LOG = logging.getLogger("wgpu_backend.worker")


def make_engine(
    model: LanguageModel,
    spec: LoadSpec,
    progress: Progress | None = None,
    **options: Any,  # noqa: ANN401
) -> Engine:
    """Create the engine of a spec, with its draft: ``"ngram"`` or the path of a draft model.

    A draft suits only some of a server's models; the others run without it, and the log states
    the reason.

    Parameters
    ----------
    progress : callable or None
        Progress of loading the draft.
    **options
        Defaults of the engine, which the spec overrides.
    """
    own = {**options, **spec.engine}
    draft = own.pop("draft", None)
    most = own.pop("draft_tokens", None)
    if draft is None:
        return Engine(model, **own)
    guessing = own if most is None else {**own, "draft_tokens": most}
    found: LanguageModel | None = None
    try:
        found = None if draft == NGRAM else _load_draft(draft, model, spec, progress)
        return Engine(model, draft=found or "ngram", **guessing)
    except BackendError as error:
        _LOG.warning("%s is served without a draft: %s", spec.path, error)
        if found is not None:
            found.close()
        return Engine(model, **own)


def _load_draft(
    path: str, model: LanguageModel, spec: LoadSpec, progress: Progress | None
) -> LanguageModel:
    """Load the draft model, with as much context as the model has."""
    if path == spec.path:
        raise OptionError("draft: the model would guess for itself, which saves nothing")
    own = replace(spec, adapters=(), control_vectors=(), control_layers=None)
    sized = replace(own, num_ctx=model.num_ctx, num_parallel=model.num_parallel)
    return load(path, progress=progress, **sized.arguments)
