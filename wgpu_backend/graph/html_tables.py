"""Rows of facts as an HTML table, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """Return an HTML table with escaped texts; without a header, the first cell of a row is one."""
    first = "td" if header else "th"
    lines = [_row([_cell("th", name) for name in header])] if header else []
    for name, *values in rows:
        lines.append(_row([_cell(first, name), *(_cell("td", value) for value in values)]))
    return f"<table>{''.join(lines)}</table>"


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(cells)}</tr>"


def _cell(tag: str, value: object) -> str:
    return f'<{tag} style="text-align: left">{escape(str(value))}</{tag}>'


def binary_size(nbytes: int | None) -> str:
    """Return a byte count for people: ``1.5 GiB``; a dash for None."""
    if nbytes is None:
        return "–"
    size, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
