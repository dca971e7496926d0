"""Pictures and sounds between a server and a worker.

The worker reads and prepares them, as it has the tower; the server makes the prompt. So the server
learns where their rows stand, and sends back where it put them. Pixels cross the socket once.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any, cast

from wgpu_backend.engine.media import Part, Placed, Prepared, Run, TowerRules
from wgpu_backend.errors import QueueFull
from wgpu_backend.nn.tower import Media, Rows, Tower

Message = dict[str, Any]
PlacedPlain = tuple[str, list[list[Any]]]
"""A digest, and of each run: start, first row, the fields of its `Rows`, and its token."""
# Host memory of a worker for what was prepared and not yet submitted.
_MOST_NBYTES = 512 << 20


class PreparedMedia:
    """The pictures and sounds that a worker has prepared for requests that are still to come.

    Each is kept until as many requests have placed it as prepared it. Those of requests that never
    come, as they were refused, are dropped for later ones, the oldest first.
    """

    def __init__(self, most_nbytes: int = _MOST_NBYTES) -> None:
        self._most = most_nbytes
        self._found: dict[str, tuple[Media, Tower, int]] = {}

    def add(self, media: Media, tower: Tower) -> Message:
        """Keep a prepared picture or sound, and return the facts that a server needs."""
        digest = media.digest.hex()
        _, _, waiting = self._found.pop(digest, (None, None, 0))
        self._found[digest] = media, tower, waiting + 1
        while len(self._found) > 1 and self._nbytes > self._most:
            del self._found[next(iter(self._found))]
        return {
            "digest": digest,
            "layout": [
                part if isinstance(part, str) else _list_rows(part) for part in media.layout
            ],
            "markers": [*media.markers],
            "rules": [tower.placeholder, tower.around, tower.is_causal],
        }

    @property
    def _nbytes(self) -> int:
        return sum(a.nbytes for media, *_ in self._found.values() for a in media.arrays.values())

    def place(self, plain: PlacedPlain) -> Placed:
        """Return a picture or sound at its place in a prompt.

        Raises
        ------
        QueueFull
            It was dropped since, for later ones.
        """
        digest, runs = plain
        if digest not in self._found:
            raise QueueFull(
                "a picture or sound was dropped for later ones before its request came, as they "
                f"take more than {self._most >> 20} MiB; send the request again"
            )
        media, tower, waiting = self._found.pop(digest)
        if waiting > 1:
            self._found[digest] = media, tower, waiting - 1
        return Placed(media, tower, [_parse_run(run) for run in runs])


def _parse_run(plain: Sequence[Any]) -> Run:
    start, first, *rows = plain
    return Run(start, first, _parse_rows(rows[:4]), *rows[4:])


def _list_rows(rows: Rows) -> list[Any]:
    return [rows.count, rows.grid, rows.step, rows.states]


def _parse_rows(plain: Sequence[Any]) -> Rows:
    count, grid, *more = plain
    return Rows(count, _parse_grid(grid), *more)


def _parse_grid(plain: Sequence[int] | None) -> tuple[int, int, int] | None:
    if plain is None:
        return None
    time, height, width = plain
    return time, height, width


def ask_prepared(ask: Callable[..., tuple[Message, bytes]], part: Part) -> Prepared:
    """Let a worker prepare a picture, sound or video; return it without the tower's inputs."""
    source = cast("bytes | Sequence[bytes]", part.source)
    data = (
        b64encode(source).decode()
        if isinstance(source, bytes)
        else [b64encode(each).decode() for each in source]
    )
    [found, _] = ask("prepare", kind=part.kind, data=data, fps=part.fps)
    layout = [each if isinstance(each, str) else _parse_rows(each) for each in found["layout"]]
    placeholder, around, is_causal = found["rules"]
    rules = TowerRules(placeholder, (around[0], around[1]), is_causal)
    return Media({}, layout, bytes.fromhex(found["digest"]), (*found["markers"],)), rules


def parse_part(message: Message) -> Part:
    """Parse a picture, sound or video that `ask_prepared` sent."""
    data = message["data"]
    source = b64decode(data) if isinstance(data, str) else [b64decode(each) for each in data]
    return Part(message["kind"], source, message["fps"])


def list_placed(placed: Sequence[Placed]) -> list[PlacedPlain]:
    """Return pictures and sounds at their places as plain data."""
    return [
        (
            each.media.digest.hex(),
            [[run.start, run.first, *_list_rows(run.rows), run.token] for run in each.runs],
        )
        for each in placed
    ]
