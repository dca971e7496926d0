"""A model's words on the screen as they come, and what they cost."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import cast

from wgpu_backend.cli.console import answer, human_seconds, is_terminal
from wgpu_backend.cli.interrupts import Interrupts
from wgpu_backend.cli.wrap import Wrapper
from wgpu_backend.engine.generation import Stats


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said, and whether it was allowed to finish."""

    text: str
    interrupted: bool


def say(pieces: Iterator[str]) -> Reply:
    """Write pieces to stdout as they come; Ctrl-C ends it in good order, twice at once.

    Parameters
    ----------
    pieces : iterator of str
        Closed at the end.

    Returns
    -------
    Reply
    """
    seen = is_terminal(sys.stdout)
    wrapper = Wrapper(shutil.get_terminal_size().columns if seen else 0)
    said: list[str] = []
    generator = cast("Generator[str]", pieces)
    try:
        with Interrupts() as interrupts, closing(generator):
            for piece in generator:
                said.append(piece)
                answer(wrapper.push(piece))
                if interrupts.asked:
                    break
    except BaseException:
        if said:
            answer(wrapper.flush() + "\n")
        raise
    answer(wrapper.flush() + "\n")
    return Reply("".join(said), interrupts.asked)


def write_stats(stats: Stats, load_seconds: float | None = None) -> None:
    """Write what a reply took to stderr, under Ollama's names."""
    total = stats.prompt_seconds + stats.seconds + (load_seconds or 0.0)
    rows = [("total duration", human_seconds(total))]
    if load_seconds is not None:
        rows.append(("load duration", human_seconds(load_seconds)))
    rows += _part("prompt eval", stats.prompt_tokens, stats.prompt_seconds)
    if stats.reused_tokens:
        rows.append(("prompt cached", _tokens(stats.reused_tokens)))
    rows += _part("eval", stats.tokens, stats.seconds)
    rows.append(("done reason", stats.reason or "interrupted"))
    sys.stdout.flush()
    sys.stderr.write("\n" + "".join(f"{name + ':':<22}{value}\n" for name, value in rows))
    sys.stderr.flush()


def _part(name: str, tokens: int, seconds: float) -> list[tuple[str, str]]:
    rate = tokens / seconds if seconds else 0.0
    return [
        (f"{name} count", _tokens(tokens)),
        (f"{name} duration", human_seconds(seconds)),
        (f"{name} rate", f"{rate:.2f} tokens/s"),
    ]


def _tokens(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"
