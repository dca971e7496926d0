"""`wgpu-backend run`: one answer, or a chat."""

from __future__ import annotations

import os
import stat
import sys
import time
from dataclasses import dataclass, field

from wgpu_backend.cli.chat import Chat
from wgpu_backend.cli.console import is_terminal
from wgpu_backend.cli.failures import INTERRUPTED, UsageError
from wgpu_backend.cli.loading import open_model
from wgpu_backend.cli.names import STORY, known_model, model_path
from wgpu_backend.cli.options import Settings
from wgpu_backend.cli.reply import write_stats
from wgpu_backend.sample import SamplingOptions


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a user asked for.

    Parameters
    ----------
    system : str
    sampling : dict
        Sampling options that were given, by name; None for those that were not.
    num_predict : int
    raw : bool
    """

    system: str = ""
    sampling: dict[str, float | None] = field(default_factory=dict[str, float | None])
    num_predict: int = -1
    raw: bool = False

    @property
    def options(self) -> SamplingOptions:
        """Sampling options, with defaults for what was not given."""
        given = {name: value for name, value in self.sampling.items() if value is not None}
        return SamplingOptions(**given)  # pyright: ignore[reportArgumentType] checked by itself


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
    name, prompt = sorted_out(*words)
    path, options = model_path(name), wanted.options
    prompt = _with_stdin(prompt)
    begin = time.perf_counter()
    with open_model(path, settings) as model:
        load_seconds = time.perf_counter() - begin
        chat = Chat(
            model,
            wanted.system,
            options,
            wanted.num_predict,
            raw=wanted.raw,
            verbose=settings.verbose,
        )
        if prompt is None:
            from wgpu_backend.cli.repl import converse

            converse(chat)
            return 0
        reply = chat.ask(prompt)
        if settings.verbose:
            write_stats(model.stats, load_seconds)
        return INTERRUPTED if reply.interrupted else 0


def sorted_out(first: str | None, second: str | None) -> tuple[str, str | None]:
    """Model and prompt out of one or two words; a lone word that is no model is a prompt."""
    if first is None:
        return STORY, None
    if second is None and not known_model(first):
        return STORY, first
    return first, second


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
