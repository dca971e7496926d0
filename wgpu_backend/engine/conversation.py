"""A session of a model: a conversation of its own, beside others."""

from __future__ import annotations

from wgpu_backend.engine.answers import Answers
from wgpu_backend.engine.generation import Session, Stats
from wgpu_backend.engine.sessions import Sessions


class Conversation(Answers):
    """What `LanguageModel.session` gives: it answers beside the model and its other sessions.

    Streams of several sessions, in one thread or in several, change nothing for each other: each
    gives what it would give alone. They share the context's positions: what an idle session keeps
    for reuse goes first where room is short.

    Use it as a context manager, or `close` it. A session that is dropped is closed.

    Attributes
    ----------
    model : LanguageModel
        Whose session it is; it lives as long.
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
        """Give its part of the cache back, after the step that is under way; again is harmless."""
        self._sessions.close_one(self._session)
