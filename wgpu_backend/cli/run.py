"""`wgpu-backend run`: a single answer, or a chat."""

from __future__ import annotations

import os
import stat
import sys
import time

from wgpu_backend.cli.console import answer, is_terminal
from wgpu_backend.cli.failures import INTERRUPTED, UsageError
from wgpu_backend.cli.names import NoSuchModel, model_path, sort_out
from wgpu_backend.cli.opened import Opened, Wanted, by_server
from wgpu_backend.cli.options import Settings
from wgpu_backend.cli.pulling import offered_pull
from wgpu_backend.cli.reply import as_json, write_stats


def run(
    words: tuple[str | None, str | None],
    wanted: Wanted,
    settings: Settings,
    *,
    insecure: bool = False,
) -> int:
    """Answer the given prompt, or start a chat on a terminal without one.

    Parameters
    ----------
    words : pair of str or None
        Arguments: a model and a prompt, or one of them.
    insecure : bool
        Allow a missing model to be pulled from a registry at ``http://``.

    Returns
    -------
    int
        Exit code.
    """
    name, prompt = _sorted_out(words, wanted, settings, insecure=insecure)
    prompt = _with_stdin(prompt)
    if prompt is None and wanted.as_json:
        raise UsageError("run: --json needs a prompt")
    if prompt is not None and not (prompt if wanted.raw else prompt.strip()):
        raise UsageError("run: the prompt is empty; leave it out to chat")
    begin = time.perf_counter()
    with Opened(name, wanted, settings) as opened:
        load_seconds = time.perf_counter() - begin
        chat = opened.chat(verbose=settings.verbose)
        if prompt is None:
            from wgpu_backend.cli.repl import converse

            converse(chat)
            return 0
        reply = chat.ask(prompt)
        if wanted.as_json:
            answer(as_json(name, reply, opened.model.stats, load_seconds))
        if settings.verbose:
            write_stats(opened.model.stats, load_seconds)
        return INTERRUPTED if reply.interrupted else 0


def _sorted_out(
    words: tuple[str | None, str | None], wanted: Wanted, settings: Settings, *, insecure: bool
) -> tuple[str, str | None]:
    """Return model and prompt; pull a missing model if the user agrees."""
    first, second = words
    if first is not None and " " not in first and by_server(first, wanted, settings) is not None:
        return first, second  # the model may be in the store of another machine
    try:
        name, prompt = sort_out(*words)
        model_path(name)
    except NoSuchModel as error:
        if not offered_pull(error.name, insecure=insecure):
            raise
        name, prompt = sort_out(*words)
    return name, prompt


def _with_stdin(prompt: str | None) -> str | None:
    """Prepend piped input to the prompt, as Ollama does; return None for a chat.

    Raises
    ------
    UsageError
        There is neither a prompt nor a terminal.
    """
    if prompt is None and is_terminal(sys.stdin):
        return None
    piped = sys.stdin.read().strip("\n") if prompt is None or _is_piped() else ""
    if prompt is None and not piped:
        raise UsageError("run: stdin is no terminal and empty, needs a prompt")
    return "\n".join(part for part in (piped, prompt) if part)


def _is_piped() -> bool:
    """Return whether stdin is a file or a pipe; other streams might never end."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)
