"""The options of the commands for texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from wgpu_backend.cli.completion import complete_model
from wgpu_backend.cli.options import (
    HISTORY_VARIABLES,
    Settings,
    makes_answers,
    opens_a_model,
)
from wgpu_backend.cli.parameters import Value


@opens_a_model
@makes_answers
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
        str | None, typer.Argument(metavar="PROMPT", help="What to answer; a chat if left out.")
    ] = None,
    system: Annotated[str, typer.Option("--system", metavar="TEXT", help="System message.")] = "",
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is.")] = False,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="Answer in `json`, or by a schema's file."),
    ] = None,
    grammar: Annotated[
        Path | None,
        typer.Option("--grammar", metavar="FILE", help="Keep to a grammar: GBNF, or .lark."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write the answer and what it took as JSON.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print timing statistics.")] = False,
    no_history: Annotated[
        bool,
        typer.Option(
            "--no-history", envvar=HISTORY_VARIABLES, help="Keep nothing that is typed in a chat."
        ),
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="A missing model may come from http://.")
    ] = False,
    think: Annotated[
        bool | None,
        typer.Option("--think/--no-think", help="Have the model reason first, or not."),
    ] = None,
    hide_thinking: Annotated[
        bool, typer.Option("--hidethinking", help="Leave the reasoning out of the output.")
    ] = False,
    no_word_wrap: Annotated[
        bool, typer.Option("--nowordwrap", help="Break no lines between words.")
    ] = False,
    keep_alive: Annotated[
        str | None,
        typer.Option(
            "--keepalive", metavar="TIME", help="How long a server keeps the model: 5m, -1, 0."
        ),
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Load the model here even if a server runs.")
    ] = False,
    *,
    parameters: Mapping[str, Value],
    settings: Settings,
) -> int:
    """Answer a prompt, or start a chat if there is none.

    Text piped to stdin comes before the prompt. A model that `wgpu-backend serve` has in its
    store is run by that server, so that it is not loaded twice, unless --local or an option of
    the device or the model's loading is given.
    """
    from wgpu_backend.cli.formats import grammar_of
    from wgpu_backend.cli.run import Wanted, run

    keeps = grammar_of(form, grammar)
    wanted = Wanted(
        system,
        parameters,
        raw=raw,
        as_json=as_json,
        history=not no_history,
        grammar=keeps,
        think=think,
        hides_thinking=hide_thinking,
        wraps=not no_word_wrap,
        keep_alive=keep_alive,
        local=local,
    )
    return run((model, prompt), wanted, replace(settings, verbose=verbose), insecure=insecure)
