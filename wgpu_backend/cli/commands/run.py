"""`wgpu-backend run`: a single answer, or a chat."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wgpu_backend.cli.commands.pull import offer_pull
from wgpu_backend.cli.completion import complete_model
from wgpu_backend.cli.console import is_terminal, print_text
from wgpu_backend.cli.failures import INTERRUPTED, UsageError
from wgpu_backend.cli.names import NoSuchModel, find_model, split_model_and_prompt
from wgpu_backend.cli.options import (
    HISTORY_VARIABLES,
    FramesPerSecond,
    Images,
    ModelSettings,
    NoWarmup,
    Sounds,
    Videos,
    with_answer_options,
    with_model_options,
)
from wgpu_backend.cli.parameters import Value

if TYPE_CHECKING:
    from wgpu_backend.cli.chat_model import RunOptions


@with_model_options
@with_answer_options
def run(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="GGUF file, folder, or name in the store; the story model if left out.",
            autocompletion=complete_model,
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="Prompt; starts a chat if left out.")
    ] = None,
    system: Annotated[str, typer.Option("--system", metavar="TEXT", help="System message.")] = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt without a chat template.")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Format of the answer: `json`, or the file of a JSON schema.",
        ),
    ] = None,
    grammar: Annotated[
        Path | None,
        typer.Option(
            "--grammar",
            metavar="FILE",
            help="Grammar of the answer: GBNF, or Lark in a .lark file.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answer and its statistics as JSON.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print timing statistics.")] = False,
    no_history: Annotated[
        bool,
        typer.Option(
            "--no-history",
            envvar=HISTORY_VARIABLES,
            help="Do not store the input history of a chat.",
        ),
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow pulling a missing model over http://.")
    ] = False,
    think: Annotated[
        bool | None,
        typer.Option("--think/--no-think", help="Turn reasoning on or off."),
    ] = None,
    hide_thinking: Annotated[
        bool, typer.Option("--hidethinking", help="Leave the reasoning out of the output.")
    ] = False,
    no_word_wrap: Annotated[
        bool, typer.Option("--nowordwrap", help="Do not wrap lines at words.")
    ] = False,
    keep_alive: Annotated[
        str | None,
        typer.Option(
            "--keepalive", metavar="TIME", help="How long a server keeps the model: 5m, -1, 0."
        ),
    ] = None,
    image: Images = None,
    audio: Sounds = None,
    video: Videos = None,
    fps: FramesPerSecond = None,
    local: Annotated[
        bool, typer.Option("--local", help="Load the model here even if a server runs.")
    ] = False,
    no_warmup: NoWarmup = False,
    *,
    parameters: Mapping[str, Value],
    settings: ModelSettings,
) -> int:
    """Answer a prompt, or start a chat if there is none.

    Text piped to stdin comes before the prompt. If `wgpu-backend serve` runs and has the model,
    the server answers, so that the model is not loaded twice. With --local, or with options of
    the device or of loading, the model is loaded here. So it is with --image, --audio and
    --video, for pictures, sounds and videos that the prompt is about.
    """
    from wgpu_backend.cli.chat_model import ChatModel, RunOptions
    from wgpu_backend.cli.formats import make_grammar
    from wgpu_backend.cli.reply import format_json, write_stats

    options = RunOptions(
        system,
        parameters,
        raw=raw,
        as_json=as_json,
        history=not no_history,
        grammar=make_grammar(form, grammar),
        think=think,
        hides_thinking=hide_thinking,
        wraps=not no_word_wrap,
        keep_alive=keep_alive,
        local=local,
        images=tuple(image or ()),
        sounds=tuple(audio or ()),
        videos=tuple(video or ()),
        fps=fps,
    )
    settings = replace(settings, verbose=verbose)
    name, prompt = _find_model_and_prompt((model, prompt), options, settings, insecure=insecure)
    prompt = _prepend_stdin(prompt)
    if prompt is None and as_json:
        raise UsageError("run: --json needs a prompt")
    if prompt is not None and not (prompt if raw else prompt.strip()):
        raise UsageError("run: the prompt is empty; leave it out to chat")
    if fps is not None and not video:
        raise UsageError("--fps: requires --video")
    # With a prompt the real picture would wait for the blank one, or there is none.
    settings = replace(settings, warmup=prompt is None and not no_warmup)
    begin = time.perf_counter()
    with ChatModel(name, options, settings) as opened:
        load_seconds = time.perf_counter() - begin
        chat = opened.chat(verbose=verbose)
        if prompt is None:
            # prompt_toolkit is slow to import, and a single answer does not need it.
            from wgpu_backend.cli.repl import converse

            converse(chat)
            return 0
        reply = chat.ask(prompt)
        if as_json:
            print_text(format_json(name, reply, opened.model.stats, load_seconds))
        if verbose:
            write_stats(opened.model.stats, load_seconds)
        return INTERRUPTED if reply.interrupted else 0


def _find_model_and_prompt(
    words: tuple[str | None, str | None],
    options: RunOptions,
    settings: ModelSettings,
    *,
    insecure: bool,
) -> tuple[str, str | None]:
    """Return model and prompt; pull a missing model if the user agrees."""
    from wgpu_backend.cli.chat_model import find_on_server

    first, second = words
    if (
        first is not None
        and " " not in first
        and find_on_server(first, options, settings) is not None
    ):
        # The server may run on another machine, so the name need not be in the store here.
        return first, second
    try:
        name, prompt = split_model_and_prompt(*words)
        find_model(name)
    except NoSuchModel as error:
        if not offer_pull(error.name, insecure=insecure):
            raise
        name, prompt = split_model_and_prompt(*words)
    return name, prompt


def _prepend_stdin(prompt: str | None) -> str | None:
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
        raise UsageError("run: stdin is not a terminal and is empty, needs a prompt")
    return "\n".join(part for part in (piped, prompt) if part)


def _is_piped() -> bool:
    """Return whether stdin is a file or a pipe; other streams might never end."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)
