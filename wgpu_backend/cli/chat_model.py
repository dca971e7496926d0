"""The model of a chat: the user's options, the store's parameters, and switching of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from wgpu_backend.cli.chat import Chat
from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.loading import open_model
from wgpu_backend.cli.names import BUNDLED, exists, find_model
from wgpu_backend.cli.options import AdapterSettings, ModelSettings
from wgpu_backend.cli.parameters import Value
from wgpu_backend.cli.served_model import ServedModel, find_served
from wgpu_backend.cli.store import find_stored, select_parameters
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.prompt import Message
from wgpu_backend.ops.sampling.host import SamplingOptions
from wgpu_backend.text.grammar import Grammar


@dataclass(frozen=True, slots=True)
class RunOptions:
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
    images : tuple of str
        Files of pictures that the first prompt is about.
    sounds : tuple of str
        Files of sounds that it is about.
    videos : tuple of str
        Animations, and folders of frames, that it is about.
    fps : float or None
        Frames in a second of these; None for the usual number.
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
    images: tuple[str, ...] = ()
    sounds: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()
    fps: float | None = None

    def begin(self, chat: Chat) -> None:
        """Apply the options to a conversation, and restart it."""
        # A copy: options of `run` serve again when the chat loads another model.
        given = dict(self.parameters)
        chat.num_predict = cast("int", given.pop("num_predict", -1))
        chat.stop = cast("tuple[str, ...]", given.pop("stop", ()))
        chat.options = SamplingOptions(**given)  # pyright: ignore[reportArgumentType] checked by itself
        chat.system, chat.grammar, chat.raw = self.system, self.grammar, self.raw
        chat.messages, chat.warned = list(self.messages), False
        chat.chosen, chat.images = set(self.parameters), [*self.images]
        chat.sounds, chat.videos, chat.fps = [*self.sounds], [*self.videos], self.fps
        chat.think, chat.hides_thinking, chat.wraps = self.think, self.hides_thinking, self.wraps


class ChatModel:
    """The open model of a chat, which can be reloaded with another context or replaced.

    Parameters
    ----------
    name : str
        Name of the model as the user gave it.
    """

    model: LanguageModel | ServedModel

    def __init__(self, name: str, options: RunOptions, settings: ModelSettings) -> None:
        # As given: each model that is loaded later fills the rest from its own entry in the store.
        self._arguments = options, settings
        found = find_on_server(name, options, settings)
        if found is not None:
            self.model, self._name, self._options = found, name, options
            return
        if options.keep_alive is not None:
            raise UsageError("run: --keepalive needs a running server that has the model")
        self._name, self._path = name, find_model(name)
        self._options, self._settings = fill_from_store(name, options, settings)
        self.model = open_model(self._path, self._settings, label=_make_label(name, self._path))

    def __enter__(self) -> ChatModel:
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self.model, LanguageModel):
            self.model.close()

    def chat(self, *, verbose: bool) -> Chat:
        """Begin a conversation."""
        chat = Chat(self.model, verbose=verbose, echo=not self._options.as_json, source=self._name)
        chat.reopen, chat.load = self.reopen, lambda name: self.load(name, chat)
        chat.keeps = self._options.history
        self._options.begin(chat)
        return chat

    def reopen(self, num_ctx: int) -> LanguageModel:
        """Load the model with another context; restore the former one and raise if that fails."""
        return self._replace_model(self._name, self._path, replace(self._settings, num_ctx=num_ctx))

    def load(self, name: str, chat: Chat) -> None:
        """Switch to another model and its initial conversation.

        Raises
        ------
        UsageError
            The model does not exist; the chat keeps the former model, as after any failure.
        """
        if isinstance(self.model, ServedModel):
            found = find_on_server(name, *self._arguments)
            if found is None and (exists(name) or name in BUNDLED):
                raise UsageError(
                    f"{name}: the server runs this chat; use `run {name}` to open the model here"
                )
            if found is None:
                raise UsageError(f"{name}: the server has no such model; `list` shows its models")
            self.model, options = found, self._arguments[0]
        else:
            path = find_model(name)
            options, settings = fill_from_store(name, *self._arguments)
            self._replace_model(name, path, settings)
            self._path, self._settings = path, settings
        self._name, self._options = name, options
        chat.model, chat.source = self.model, name
        options.begin(chat)

    def _replace_model(self, name: str, path: Path, settings: ModelSettings) -> LanguageModel:
        assert isinstance(self.model, LanguageModel)
        # To restore the former model as it ran, on the device that was found for it.
        before = replace(self._settings, num_ctx=self.model.num_ctx)
        placed = len(self.model.placement.devices) > 1 or settings.devices or settings.placement
        if not placed:
            # The device stays the same, also where it was the best one then.
            before = replace(before, device=self.model.device.id)
            settings = replace(settings, device=before.device)
        # Close first: there may not be memory for two models.
        self.model.close()
        try:
            self.model = open_model(path, settings, label=_make_label(name, path))
        # Ctrl-C during loading, too, must leave a model for the chat to go on with.
        except BaseException:
            self.model = open_model(self._path, before, label=_make_label(self._name, self._path))
            raise
        return self.model


def find_on_server(name: str, options: RunOptions, settings: ModelSettings) -> ServedModel | None:
    """Return the model of a running server, if it has the model and no option forbids that.

    Options of the device and of loading, and grammars that Ollama's API does not support, need a
    model in this process.
    """
    adapters = settings.adapters
    # Requests carry the size of the context, but no other option of loading.
    plain = (
        replace(settings, num_ctx=None, verbose=False, warmup=False, adapters=AdapterSettings())
        == ModelSettings()
    )
    plain = plain and not (adapters.loras or adapters.control_vectors or adapters.control_layers)
    # Ollama's API has `format`, a JSON schema, and no grammars.
    grammar = options.grammar is None or options.grammar.kind == "json_schema"
    own = exists(name) or name in BUNDLED
    shown = options.images or options.sounds or options.videos
    if options.local or shown or not plain or not grammar or own:
        return None
    return find_served(name, options.keep_alive, settings.num_ctx)


def _make_label(name: str, path: Path) -> str:
    """Return a short name for the progress bar; the name of a blob would be a digest."""
    return path.name if exists(name) or name in BUNDLED else name


def fill_from_store(
    name: str, options: RunOptions, settings: ModelSettings
) -> tuple[RunOptions, ModelSettings]:
    """Fill options that the user did not give from the model in the store."""
    found = None if exists(name) or name in BUNDLED else find_stored(name)
    if found is None:
        return options, settings
    given = select_parameters(found.parameters)
    num_ctx = given.pop("num_ctx", None)
    if settings.num_ctx is None and num_ctx is not None:
        settings = replace(settings, num_ctx=int(cast("int", num_ctx)))
    # The store's adapters are part of the model, so the user's come on top of them.
    loras = (*((path, 1.0) for path in found.adapters), *settings.adapters.loras)
    settings = replace(
        settings,
        adapters=replace(settings.adapters, loras=loras),
        mmproj=settings.mmproj or found.projector,
    )
    options = replace(
        options,
        system=options.system or found.system,
        parameters={**given, **options.parameters},
        messages=tuple(dict(each) for each in found.messages),
    )
    return options, settings
