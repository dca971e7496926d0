"""`wgpu-backend run`: one answer, or a chat."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from wgpu_backend.cli.chat import Chat
from wgpu_backend.cli.console import answer, is_terminal
from wgpu_backend.cli.failures import INTERRUPTED, UsageError
from wgpu_backend.cli.library import known_parameters, stored
from wgpu_backend.cli.loading import open_model
from wgpu_backend.cli.names import STORY, exists, model_path, sort_out
from wgpu_backend.cli.options import Settings
from wgpu_backend.cli.parameters import Value
from wgpu_backend.cli.reply import as_json, write_stats
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.grammar import Grammar
from wgpu_backend.sample import SamplingOptions


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a user asked for.

    Parameters
    ----------
    system : str
    parameters : mapping
        Those of `PARAMETERS` that were given.
    raw : bool
    as_json : bool
        Write the answer and what it took as JSON.
    history : bool
        Keep what is typed in a chat for the next one.
    grammar : Grammar or None
        That answers keep to.
    """

    system: str = ""
    parameters: Mapping[str, Value] = field(default_factory=dict[str, Value])
    raw: bool = False
    as_json: bool = False
    history: bool = True
    grammar: Grammar | None = None

    def chat(self, opened: Opened, *, verbose: bool) -> Chat:
        """Conversation with a model that is open."""
        given = dict(self.parameters)
        return Chat(
            opened.model,
            self.system,
            num_predict=cast("int", given.pop("num_predict", -1)),
            stop=cast("tuple[str, ...]", given.pop("stop", ())),
            options=SamplingOptions(**given),  # pyright: ignore[reportArgumentType] checked by itself
            raw=self.raw,
            verbose=verbose,
            echo=not self.as_json,
            reopen=opened.reopen,
            grammar=self.grammar,
        )


class Opened:
    """A model that can be opened again with another context, which a chat may ask for.

    Parameters
    ----------
    path : Path
    settings : Settings
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self._path = path
        self._settings = settings
        self.model = open_model(path, settings)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.model.close()

    def reopen(self, num_ctx: int) -> LanguageModel:
        """Load the model with another context; where that fails, as it was, and raise."""
        before = replace(self._settings, device=self.model.device.id, num_ctx=self.model.num_ctx)
        self.model.close()  # first: there may not be room for two
        try:
            self.model = open_model(self._path, replace(before, num_ctx=num_ctx))
        except BaseException:
            self.model = open_model(self._path, before)
            raise
        return self.model


def run(words: tuple[str | None, str | None], wanted: Wanted, settings: Settings) -> int:
    """Answer the prompt that was given, or chat where a person sits and gave none.

    Parameters
    ----------
    words : pair of str or None
        The arguments: a model and a prompt, or one of them.
    wanted : Wanted
    settings : Settings

    Returns
    -------
    int
        Exit code.
    """
    name, prompt = sort_out(*words)
    path = model_path(name)
    wanted, settings = _as_stored(name, wanted, settings)
    prompt = _with_stdin(prompt)
    if prompt is None and wanted.as_json:
        raise UsageError("run: --json needs a prompt")
    if prompt is not None and not (prompt if wanted.raw else prompt.strip()):
        raise UsageError("run: the prompt is empty; leave it out to chat")
    begin = time.perf_counter()
    with Opened(path, settings) as opened:
        load_seconds = time.perf_counter() - begin
        chat = wanted.chat(opened, verbose=settings.verbose)
        if prompt is None:
            from wgpu_backend.cli.repl import converse

            converse(chat, keep=wanted.history)
            return 0
        reply = chat.ask(prompt)
        if wanted.as_json:
            answer(as_json(name, reply, opened.model.stats, load_seconds))
        if settings.verbose:
            write_stats(opened.model.stats, load_seconds)
        return INTERRUPTED if reply.interrupted else 0


def _as_stored(name: str, wanted: Wanted, settings: Settings) -> tuple[Wanted, Settings]:
    """What a model of the store brings along, where the user did not ask for something else."""
    found = None if exists(name) or name == STORY else stored(name)
    if found is None:
        return wanted, settings
    given = known_parameters(found.parameters)
    num_ctx = given.pop("num_ctx", None)
    if settings.num_ctx is None and num_ctx is not None:
        settings = replace(settings, num_ctx=int(cast("int", num_ctx)))
    adapters = (*((path, 1.0) for path in found.adapters), *settings.changes.adapters)
    settings = replace(settings, changes=replace(settings.changes, adapters=adapters))
    parameters = {**given, **wanted.parameters}
    return replace(wanted, system=wanted.system or found.system, parameters=parameters), settings


def _with_stdin(prompt: str | None) -> str | None:
    """Prompt with what was piped in before it, as Ollama has it; None asks for a chat.

    Raises
    ------
    UsageError
        There is neither a prompt nor a terminal to chat on.
    """
    if prompt is None and is_terminal(sys.stdin):
        return None
    piped = sys.stdin.read().strip("\n") if prompt is None or _is_piped() else ""
    if prompt is None and not piped:
        raise UsageError("run: stdin is no terminal and empty, needs a prompt")
    return "\n".join(part for part in (piped, prompt) if part)


def _is_piped() -> bool:
    """Whether stdin is a file or a pipe; anything else might never end."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)
