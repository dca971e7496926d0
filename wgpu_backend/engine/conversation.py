"""A session of a model: an independent conversation with its own part of the KV cache."""

from __future__ import annotations

from wgpu_backend.engine.answers import Answers
from wgpu_backend.engine.generation import Session, Stats
from wgpu_backend.engine.sessions import Sessions


class Conversation(Answers):
    """A session from `LanguageModel.session`, independent of the model's other sessions.

    Streams of several sessions, in one thread or several, do not affect each other's output. They
    share the context's positions: if they run out, idle sessions lose their cached prefix first.

    Use it as a context manager, or `close` it. A session that is dropped is closed.

    Attributes
    ----------
    model : LanguageModel
        The model that the session belongs to.
    """

    def __init__(self, model: Answers, sessions: Sessions) -> None:
        self.model = model
        self.tokenizer = model.tokenizer
        self.prompter = model.prompter
        self.grammars = model.grammars
        self.num_ctx = model.num_ctx
        self.depth = model.depth
        self.stats = Stats()
        self._sessions = sessions
        self._session: Session = sessions.open(self)

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the session's part of the cache after the current step; safe to call again."""
        self._sessions.close_one(self._session)
