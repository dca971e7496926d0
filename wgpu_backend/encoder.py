"""Encoder: what models that make vectors of whole texts have in common."""

from __future__ import annotations

from wgpu_backend.stack import Stack


class Encoder(Stack):
    """A `Stack` whose tokens see all of their text, also what comes later.

    Its attention says ``causal=False``. A text is one pass, whole; it has no next token, so there
    are no logits: `LanguageModel.embed` pools the states of its rows.
    """

    causal = False
