"""Output: answers to stdout, everything else to stderr."""

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
# Control characters: C0 without tab and newline, DEL, and C1.
_CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
# Columns for files and pipes, so that nothing is cut.
_WIDE = 1000


def harmless(text: str) -> str:
    """Remove control characters, which files and models may contain, from text."""
    return text.translate(_CONTROLS)


def note(text: str) -> None:
    """Print a note with the program's name on stderr."""
    remark(f"{PROGRAM}: {text}")


def remark(text: str) -> None:
    """Print a note on stderr without the program's name, for chats."""
    sys.stdout.flush()
    shown = harmless(text)
    if is_terminal(sys.stderr):
        width = shutil.get_terminal_size().columns
        shown = "\n".join(_wrap_line(line, width) for line in shown.split("\n"))
    sys.stderr.write(f"{shown}\n")
    sys.stderr.flush()


def _wrap_line(line: str, width: int) -> str:
    """Wrap a line between words; a path stays whole, so that it can be copied."""
    if len(line) <= width:
        return line
    return textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)


class _Notes(logging.Handler):
    """A logging handler that prints records as notes, above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        # A closed stderr must not make logging fail.
        with suppress(OSError, ValueError, AttributeError):
            note(self.format(record))


def log_as_notes(level: int = logging.WARNING) -> None:
    """Print the library's log records as notes on stderr; safe to call again.

    Parameters
    ----------
    level : int
        Level of the server's log, which has a line for each request at `logging.INFO`.
    """
    logging.getLogger("wgpu_backend.server").setLevel(level)
    # `main` may run several times in a process, and a program that calls it may have handlers.
    if not logging.root.handlers:
        logging.basicConfig(handlers=[_Notes()], format="%(message)s", level=logging.WARNING)


def print_text(text: str) -> None:
    """Write a part of the answer immediately; on a terminal without control characters."""
    sys.stdout.write(harmless(text) if is_terminal(sys.stdout) else text)
    sys.stdout.flush()


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal."""
    return stream.isatty()


def console() -> Console:
    """Make a console on stdout for tables, of unlimited width outside a terminal."""
    from rich.console import Console

    # With COLUMNS a user sets the width of tables in pipes.
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
    right : sequence of str
        Headings of the right-aligned columns.
    title : str
        Title above the table.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [[harmless(cell) for cell in row] for row in rows]
    screen = console()
    texts = [[name, *(row[place] for row in cells)] for place, name in enumerate(columns)]
    figures = [name in right for name in columns]
    for pad in (1, 0):
        # A narrow screen gets less space between columns.
        gap = 2 * pad + 1
        widths = _fit_widths(texts, figures, screen.width - gap * (len(columns) - 1))
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
    """Print each row as lines of names and values, if whole words do not fit in columns."""
    print_text(f"{title}\n" if title else "")
    for number, row in enumerate(rows):
        print_text("\n" if number or title else "")
        print_facts(pair for pair in zip(columns, row, strict=True) if pair[1])


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values on stdout, a line each."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in facts:
        table.add_row(Text(harmless(name), style="bold"), Text(harmless(value)))
    _print(table, console())


def _fit_widths(texts: Sequence[Sequence[str]], figures: Sequence[bool], room: int) -> list[int]:
    """Compute column widths: the widest text columns shrink, without breaking words or numbers."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, each)) for each in texts]
    least = [
        width if whole else max(cell_len(word) for text in each for word in [*text.split(), ""])
        for each, whole, width in zip(texts, figures, widths, strict=True)
    ]
    while sum(widths) > room and widths != least:
        _, widest = max((widths[i], i) for i in range(len(widths)) if widths[i] > least[i])
        # One column at a time, so that columns of equal width shrink alike.
        widths[widest] -= 1
    return widths


def _print(table: Table, screen: Console) -> None:
    """Print a table without trailing spaces."""
    # Rich pads lines to the width of the table, which would fill files with spaces.
    with screen.capture() as captured:
        screen.print(table)
    lines = captured.get().splitlines()
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in lines))
    sys.stdout.flush()


def human_bytes(nbytes: int) -> str:
    """Format a byte count: ``1.5 GiB``."""
    value = float(nbytes)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} {_UNITS[-1]}"


def human_count(count: int) -> str:
    """Format a count: ``2.53 M``."""
    value, suffix = float(count), ""
    for suffix in ("", " K", " M", " B", " T"):
        if value < 1000 or suffix == " T":
            break
        value /= 1000
    return f"{value:.3g}{suffix}"


def human_seconds(seconds: float) -> str:
    """Format a duration: ``1.25 s``, ``12.5 ms``, ``830 µs``."""
    if seconds >= 60:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
