"""The model of a chat: the user's options, the store's parameters, and switching of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from wgpu_backend.cli.chat import Chat
from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.library import known_parameters, stored
from wgpu_backend.cli.loading import open_model
from wgpu_backend.cli.names import STORY, exists, model_path
from wgpu_backend.cli.options import Changes, Settings
from wgpu_backend.cli.parameters import Value
from wgpu_backend.cli.served_model import ServedModel, served
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.prompt import Message
from wgpu_backend.ops.sampling.host import SamplingOptions
from wgpu_backend.text.grammar import Grammar


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of `run`.

    Parameters
    ----------
    parameters : mapping
        Given parameters by name, see `PARAMETERS`.
    as_json : bool
        Write the answer and its statistics as JSON.
    history : bool
        Keep the input history of chats.
    grammar : Grammar or None
        Grammar of the answers.
    messages : tuple of messages
        Messages at the beginning of the conversation.
    think : bool or None
        Whether to reason first; None for the model's default.
    hides_thinking : bool
        Leave reasoning out of the output.
    wraps : bool
        Break lines between words.
    keep_alive : str or None
        Time for which a server keeps the model after an answer.
    local : bool
        Load the model here even if a server runs.
    """

    system: str = ""
    parameters: Mapping[str, Value] = field(default_factory=dict[str, Value])
    raw: bool = False
    as_json: bool = False
    history: bool = True
    grammar: Grammar | None = None
    messages: tuple[Message, ...] = ()
    think: bool | None = None
    hides_thinking: bool = False
    wraps: bool = True
    keep_alive: str | None = None
    local: bool = False

    def begin(self, chat: Chat) -> None:
        """Apply the options to a conversation, and restart it."""
        given = dict(self.parameters)
        chat.num_predict = cast("int", given.pop("num_predict", -1))
        chat.stop = cast("tuple[str, ...]", given.pop("stop", ()))
        chat.options = SamplingOptions(**given)  # pyright: ignore[reportArgumentType] checked by itself
        chat.system, chat.grammar, chat.raw = self.system, self.grammar, self.raw
        chat.messages, chat.warned = list(self.messages), False
        chat.chosen = set(self.parameters)
        chat.think, chat.hides_thinking, chat.wraps = self.think, self.hides_thinking, self.wraps


class Opened:
    """The open model of a chat, which can be reloaded with another context or replaced.

    Parameters
    ----------
    name : str
        Name of the model as the user gave it.
    """

    model: LanguageModel | ServedModel

    def __init__(self, name: str, wanted: Wanted, settings: Settings) -> None:
        self._given = wanted, settings
        found = by_server(name, wanted, settings)
        if found is not None:
            self.model, self._name, self._wanted = found, name, wanted
            return
        if wanted.keep_alive is not None:
            raise UsageError("run: --keepalive is for a model of a running server, and none has it")
        self._name, self._path = name, model_path(name)
        self._wanted, self._settings = as_stored(name, wanted, settings)
        self.model = open_model(self._path, self._settings, label=_label(name, self._path))

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self.model, LanguageModel):
            self.model.close()

    def chat(self, *, verbose: bool) -> Chat:
        """Begin a conversation."""
        chat = Chat(self.model, verbose=verbose, echo=not self._wanted.as_json, source=self._name)
        chat.reopen, chat.load = self.reopen, lambda name: self.load(name, chat)
        chat.keeps = self._wanted.history
        self._wanted.begin(chat)
        return chat

    def reopen(self, num_ctx: int) -> LanguageModel:
        """Load the model with another context; restore the former one and raise if that fails."""
        return self._reopened(self._name, self._path, replace(self._settings, num_ctx=num_ctx))

    def load(self, name: str, chat: Chat) -> None:
        """Switch to another model and its initial conversation.

        Raises
        ------
        UsageError
            The model does not exist; the chat keeps the former model, as after any failure.
        """
        if isinstance(self.model, ServedModel):
            found = by_server(name, *self._given)
            if found is None and (exists(name) or name == STORY):
                raise UsageError(f"{name}: this chat is a server's; `run {name}` opens it here")
            if found is None:
                raise UsageError(f"{name}: the server has no such model; `list` shows those it has")
            self.model, wanted = found, self._given[0]
        else:
            path = model_path(name)
            wanted, settings = as_stored(name, *self._given)
            self._reopened(name, path, settings)
            self._path, self._settings = path, settings
        self._name, self._wanted = name, wanted
        chat.model, chat.source = self.model, name
        wanted.begin(chat)

    def _reopened(self, name: str, path: Path, settings: Settings) -> LanguageModel:
        assert isinstance(self.model, LanguageModel)
        before = replace(self._settings, device=self.model.device.id, num_ctx=self.model.num_ctx)
        settings = replace(settings, device=before.device)
        self.model.close()  # first, since there may not be memory for two
        try:
            self.model = open_model(path, settings, label=_label(name, path))
        except BaseException:
            self.model = open_model(self._path, before, label=_label(self._name, self._path))
            raise
        return self.model


def by_server(name: str, wanted: Wanted, settings: Settings) -> ServedModel | None:
    """Return the model of a running server, if it has the model and no option forbids that.

    Options of the device and of loading, and grammars that Ollama's API does not support, need a
    model in this process.
    """
    changes = settings.changes
    plain = replace(settings, num_ctx=None, verbose=False, changes=Changes()) == Settings()
    plain = plain and not (changes.adapters or changes.control_vectors or changes.control_layers)
    grammar = wanted.grammar is None or wanted.grammar.kind == "json_schema"
    if wanted.local or not plain or not grammar or exists(name) or name == STORY:
        return None
    return served(name, wanted.keep_alive, settings.num_ctx)


def _label(name: str, path: Path) -> str:
    """Return a short name for the progress bar; the name of a blob would be a digest."""
    return path.name if exists(name) or name == STORY else name


def as_stored(name: str, wanted: Wanted, settings: Settings) -> tuple[Wanted, Settings]:
    """Fill options that the user did not give from the model in the store."""
    found = None if exists(name) or name == STORY else stored(name)
    if found is None:
        return wanted, settings
    given = known_parameters(found.parameters)
    num_ctx = given.pop("num_ctx", None)
    if settings.num_ctx is None and num_ctx is not None:
        settings = replace(settings, num_ctx=int(cast("int", num_ctx)))
    adapters = (*((path, 1.0) for path in found.adapters), *settings.changes.adapters)
    settings = replace(settings, changes=replace(settings.changes, adapters=adapters))
    wanted = replace(
        wanted,
        system=wanted.system or found.system,
        parameters={**given, **wanted.parameters},
        messages=tuple(dict(each) for each in found.messages),
    )
    return wanted, settings
