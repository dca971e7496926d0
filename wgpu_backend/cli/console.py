"""Where words go: answers to stdout, everything else to stderr."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PROGRAM = "wgpu-backend"
# What a terminal would act on: C0 without tab and newline, DEL, and C1.
_CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_WIDE = 1000  # into a file or a pipe nothing is cut


def harmless(text: str) -> str:
    """Text without the characters that make a terminal do things; files and models may hold any."""
    return text.translate(_CONTROLS)


def note(text: str) -> None:
    """Say something beside the answer, in a line of stderr."""
    remark(f"{PROGRAM}: {text}")


def remark(text: str) -> None:
    """Say something beside the answer where it is clear who speaks: in a chat."""
    sys.stdout.flush()
    said = harmless(text)
    if is_terminal(sys.stderr):
        width = shutil.get_terminal_size().columns
        said = "\n".join(_between_words(line, width) for line in said.split("\n"))
    sys.stderr.write(f"{said}\n")
    sys.stderr.flush()


def _between_words(line: str, width: int) -> str:
    """Line as a terminal of a width should break it; a path stays whole, to be copied."""
    if len(line) <= width:
        return line
    return textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)


class _Notes(logging.Handler):
    """Says what the library logs; a bar that is shown meanwhile stays below."""

    def emit(self, record: logging.LogRecord) -> None:
        # Where stderr was closed nobody reads it, and what is logged is no reason to fail.
        with suppress(OSError, ValueError, AttributeError):
            note(self.format(record))


def log_as_notes(level: int = logging.WARNING) -> None:
    """Let what the library has to say go to stderr as notes do; again is harmless.

    Parameters
    ----------
    level : int
        Of the server's own log, which tells of each request at `logging.INFO`.
    """
    logging.getLogger("wgpu_backend.server").setLevel(level)
    if not logging.root.handlers:
        logging.basicConfig(handlers=[_Notes()], format="%(message)s", level=logging.WARNING)


def answer(text: str) -> None:
    """Write a part of the answer at once; text for people's eyes is made harmless."""
    sys.stdout.write(harmless(text) if is_terminal(sys.stdout) else text)
    sys.stdout.flush()


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at a stream."""
    return stream.isatty()


def console() -> Console:
    """Console on stdout for tables; as wide as they need where nobody looks."""
    from rich.console import Console

    unlimited = not is_terminal(sys.stdout) and "COLUMNS" not in os.environ
    return Console(width=_WIDE if unlimited else None, highlight=False, markup=False, emoji=False)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[str] = (),
    title: str = "",
) -> None:
    """Print a table on stdout.

    Parameters
    ----------
    columns : sequence of str
        Headings.
    rows : iterable of sequence of str
    right : sequence of str
        Headings of the columns that are flush right.
    title : str
        Line above.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [[harmless(cell) for cell in row] for row in rows]
    screen = console()
    texts = [[name, *(row[place] for row in cells)] for place, name in enumerate(columns)]
    figures = [name in right for name in columns]
    for pad in (1, 0):  # a narrow screen has less between columns
        gap = 2 * pad + 1
        widths = _widths(texts, figures, screen.width - gap * (len(columns) - 1))
        if sum(widths) + gap * (len(columns) - 1) <= screen.width:
            break
    else:
        _print_stacked(columns, cells, title)
        return
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, pad),
        title=title or None,
        title_justify="left",
    )
    for name, width in zip(columns, widths, strict=True):
        table.add_column(name, justify="right" if name in right else "left", width=width)
    for row in cells:
        table.add_row(*map(Text, row))
    _print(table, screen)


def _print_stacked(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    """Print each row as lines of names and values, where no whole words fit side by side."""
    answer(f"{title}\n" if title else "")
    for number, row in enumerate(rows):
        answer("\n" if number or title else "")
        print_facts(pair for pair in zip(columns, row, strict=True) if pair[1])


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and what they stand for, one below the other, on stdout."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in facts:
        table.add_row(Text(harmless(name), style="bold"), Text(harmless(value)))
    _print(table, console())


def _widths(texts: Sequence[Sequence[str]], figures: Sequence[bool], room: int) -> list[int]:
    """Width of each column: the widest ones of words give way, no word and no figure breaks."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, each)) for each in texts]
    least = [
        width if whole else max(cell_len(word) for text in each for word in [*text.split(), ""])
        for each, whole, width in zip(texts, figures, widths, strict=True)
    ]
    while sum(widths) > room and widths != least:
        _, widest = max((widths[i], i) for i in range(len(widths)) if widths[i] > least[i])
        widths[widest] -= 1
    return widths


def _print(table: Table, screen: Console) -> None:
    """Print a table without the spaces that fill its last column."""
    with screen.capture() as captured:
        screen.print(table)
    lines = captured.get().splitlines()
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in lines))
    sys.stdout.flush()


def human_bytes(nbytes: int) -> str:
    """Byte count for people: ``1.5 GiB``."""
    value = float(nbytes)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} {_UNITS[-1]}"


def human_count(count: int) -> str:
    """Count for people: ``2.53 M``."""
    value, suffix = float(count), ""
    for suffix in ("", " K", " M", " B", " T"):
        if value < 1000 or suffix == " T":
            break
        value /= 1000
    return f"{value:.3g}{suffix}"


def human_seconds(seconds: float) -> str:
    """Duration for people: ``1.25 s``, ``12.5 ms``, ``830 µs``."""
    if seconds >= 60:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
