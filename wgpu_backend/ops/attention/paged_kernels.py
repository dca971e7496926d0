"""Tile sizes of the paged attention kernel.

A row is a query head of one token. The rows that share a head of the cache are cut into tiles, and
a work group takes a tile, so a key is read once for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch

# Vectors of four that a work group reads of each key at once.
CHUNK = 16
# Vectors of four sums that a thread holds.
THREAD_SUMS = 16
# Tiles have as many rows as one of these says: each is a kernel of its own, which takes a while to
# compile.
THREAD_ROWS = (4, 8, 16)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a launch.

    Parameters
    ----------
    group : int
        Query heads that share a head of the cache.
    sequences : int
        Rows of the table of blocks.
    """

    tokens: int
    group: int
    sequences: int

    def step(self, most: int) -> int:
        """Return the rows of a tile, at most `most`.

        Tokens of one sequence see much the same keys, so tiles of a prompt span tokens. Where each
        token may be of another sequence, a tile that spans two would read the keys of both.
        """
        if self.tokens > self.sequences:
            return min(most, self.tokens * self.group)
        return -(-self.group // -(-self.group // most))


def select_tiles(launch: Launch, _: Capabilities) -> Launch:
    """Choose the tile."""
    return _tiles(launch, count_rows(launch), launch.count("v_vec4s"))


def count_rows(launch: Launch) -> Rows:
    """Return the row counts of an attention launch."""
    table, tokens = launch.operands["table"].spec, launch.operands["q"].spec.shape[0]
    return Rows(tokens, launch.count("group"), table.shape[0])


def _tiles(launch: Launch, rows: Rows, v_vec4s: int) -> Launch:
    chunks = -(-v_vec4s // CHUNK)
    step = rows.step(most(THREAD_ROWS, 4 * THREAD_SUMS // chunks))
    size = next(n for n in THREAD_ROWS if n >= step)
    choices: dict[str, str | int] = {
        "ROWS": size,
        "QUARTER_ROWS": size // 4,
        "CHUNKS": chunks,
        "WG": 64,
    }
    return use_tiles(launch, rows, step, choices)


def most(sizes: tuple[int, ...], limit: int) -> int:
    """Return the largest size within a limit; the smallest size if none is."""
    return max((n for n in sizes if n <= limit), default=sizes[0])


def use_tiles(launch: Launch, rows: Rows, step: int, choices: dict[str, str | int]) -> Launch:
    """Return a launch whose work groups take tiles of at most `step` rows."""
    tiles = max(-(-rows.tokens * rows.group // step), 1)
    return replace(
        launch,
        groups=(launch.count("kv_heads"), tiles, launch.count("splits")),
        params={**launch.params, "step": step},
        choices={**launch.choices, **choices},
    )
