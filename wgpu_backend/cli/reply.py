"""Output of streamed answers, and of their statistics."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from rich.cells import cell_len

from wgpu_backend.cli.console import human_seconds, is_terminal, print_text
from wgpu_backend.cli.interrupts import Interrupts
from wgpu_backend.engine.sessions import Stats
from wgpu_backend.text.output_parsers import Content, OutputParser, Part, Thinking

_WORDS = re.compile(r"\n|[^\S\n]+|\S+")


@dataclass(frozen=True, slots=True)
class Reply:
    """The text of an answer, and whether the user interrupted it."""

    text: str
    interrupted: bool


def print_reply(pieces: Iterator[str], *, echo: bool = True, wraps: bool = True) -> Reply:
    """Write pieces to stdout as they arrive; Ctrl-C stops cleanly, twice immediately.

    Parameters
    ----------
    pieces : iterator of str
        Closed at the end.
    echo : bool
        Write the pieces; else they are only collected.
    wraps : bool
        Break lines between words on a terminal.

    Returns
    -------
    Reply
    """
    wrapper = Wrapper(_terminal_columns if wraps and is_terminal(sys.stdout) else None)
    write = print_text if echo else _discard
    texts: list[str] = []
    generator = cast("Generator[str]", pieces)
    try:
        # Leaving the loop early must end the generation at once, and not when garbage is collected.
        with Interrupts() as interrupts, closing(generator):
            for piece in generator:
                texts.append(piece)
                write(wrapper.push(piece))
                if interrupts.requested:
                    break
    except BaseException:
        if texts:
            write(wrapper.flush() + "\n")
        raise
    write(wrapper.flush() + "\n")
    return Reply("".join(texts), interrupts.requested)


def parse_parts(pieces: Iterator[str], parser: OutputParser | None) -> Iterator[Part]:
    """Yield the parts of an answer as they arrive; without a parser all is text."""
    with closing(cast("Generator[str]", pieces)) as stream:
        for piece in stream:
            yield from [Content(piece)] if parser is None else parser.push(piece)
    if parser is not None:
        # An unfinished tool call is not text for the user.
        yield from parser.finish(cut=True)


def format_parts(parts: Iterator[Part], texts: list[str], *, hides_thinking: bool) -> Iterator[str]:
    """Yield the output of an answer, with reasoning framed as in Ollama.

    Parameters
    ----------
    parts : iterator of Part
        Closed at the end.
    texts : list of str
        Receives the text of the answer without the reasoning.
    hides_thinking : bool
        Leave the reasoning out.
    """
    thinking = False
    with closing(cast("Generator[Part]", parts)) as stream:
        for part in stream:
            if isinstance(part, Thinking):
                if hides_thinking:
                    continue
                yield part.text if thinking else f"Thinking...\n{part.text}"
                thinking = True
            elif isinstance(part, Content):
                texts.append(part.text)
                yield f"\n...done thinking.\n\n{part.text}" if thinking else part.text
                thinking = False


def _terminal_columns() -> int:
    return shutil.get_terminal_size().columns


def _discard(text: str) -> None:
    """Write nothing."""


class Wrapper:
    """A word wrapper that holds a word back until it is complete.

    Parameters
    ----------
    width : callable or None
        Returns the columns of the terminal, which may change, and is called for each piece; None
        for no wrapping.
    """

    def __init__(self, width: Callable[[], int] | None = None) -> None:
        self._width = width
        self._column = 0
        self._space = ""
        self._word = ""

    def push(self, text: str) -> str:
        """Add text, and return the part that can be printed."""
        if self._width is None:
            return text
        # The last word may go on in the next piece.
        words: list[str] = _WORDS.findall(self._word + text)
        self._word = words.pop() if words and not words[-1].isspace() else ""
        return "".join(map(self._place, words))

    def flush(self) -> str:
        """Return the word that is held back."""
        word, self._word = self._word, ""
        return self._place(word)

    def _place(self, word: str) -> str:
        if word == "\n":
            self._column, self._space = 0, ""
            return word
        if word.isspace() or not word:
            self._space += word
            return ""
        before, self._space = self._space, ""
        width = self._width() if self._width else 0
        if self._column + len(before) + cell_len(word) > width and self._column:
            before, self._column = "\n", 0
        else:
            self._column += len(before)
        # Chinese characters and emoji take two columns.
        self._column += cell_len(word)
        return before + word


def format_json(name: str, reply: Reply, stats: Stats, load_seconds: float) -> str:
    """Format an answer and its statistics as JSON with Ollama's fields; nanoseconds.

    Parameters
    ----------
    name : str
        Name of the model as the user gave it.
    """
    total = load_seconds + stats.prompt_seconds + stats.seconds
    answered = {
        "model": name,
        # Ollama writes UTC as Z, as Go does.
        "created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        "response": reply.text,
        "done": not reply.interrupted,
        "done_reason": stats.done_reason or "interrupted",
        "total_duration": _to_nanoseconds(total),
        "load_duration": _to_nanoseconds(load_seconds),
        "prompt_eval_count": stats.prompt_tokens,
        "prompt_eval_duration": _to_nanoseconds(stats.prompt_seconds),
        "eval_count": stats.tokens,
        "eval_duration": _to_nanoseconds(stats.seconds),
    }
    return json.dumps(answered, indent=2) + "\n"


def _to_nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def write_stats(stats: Stats, load_seconds: float | None = None) -> None:
    """Write the statistics of a reply to stderr, under Ollama's names."""
    total = stats.prompt_seconds + stats.seconds + (load_seconds or 0.0)
    rows = [("total duration", human_seconds(total))]
    if load_seconds is not None:
        rows.append(("load duration", human_seconds(load_seconds)))
    rows += _format_rate("prompt eval", stats.prompt_tokens, stats.prompt_seconds)
    if stats.reused_tokens:
        rows.append(("prompt cached", _count_tokens(stats.reused_tokens)))
    rows += _format_rate("eval", stats.tokens, stats.seconds)
    rows.append(("done reason", stats.done_reason or "interrupted"))
    sys.stdout.flush()
    sys.stderr.write("\n" + "".join(f"{name + ':':<22}{value}\n" for name, value in rows))
    sys.stderr.flush()


def _format_rate(name: str, tokens: int, seconds: float) -> list[tuple[str, str]]:
    rate = tokens / seconds if seconds else 0.0
    return [
        (f"{name} count", _count_tokens(tokens)),
        (f"{name} duration", human_seconds(seconds)),
        (f"{name} rate", f"{rate:.2f} tokens/s"),
    ]


def _count_tokens(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"
