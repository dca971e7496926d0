"""Kernels of paged attention: which suits a device, and how large its tiles are.

A row is a query head of one token. The rows that share a head of the cache are cut into tiles, and
a work group takes a tile, so a key is read once for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from wgpu_backend.device_info import Capabilities
from wgpu_backend.graph.node import Launch
from wgpu_backend.ops.tiles import LANES

LANE_POSITIONS = 4  # positions that each lane of a software rasteriser scores at once
LANE_SUMS = 16  # vectors of results that each of them holds
CHUNK = 16  # vectors of four that a work group of hardware reads of each key
THREAD_SUMS = 16
TEAM = 8  # lanes of a subgroup that read a key together
TEAM_SUMS = 16  # vectors of results that each of them holds, and of queries
TEAM_THREADS = 64
# Tiles have as many rows as one of these says: each is a kernel of its own, which takes a while to
# compile.
LANE_ROWS = (1, 2, 4, 8)
THREAD_ROWS = (4, 8, 16)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a launch.

    Parameters
    ----------
    tokens : int
    group : int
        Query heads that share a head of the cache.
    sequences : int
        Rows of the table of blocks.
    """

    tokens: int
    group: int
    sequences: int

    def step(self, most: int) -> int:
        """Rows of a tile of at most `most`.

        Tokens of one sequence see much the same keys, so tiles of a prompt span tokens. Where each
        token may be of another sequence, a tile that spans two would read the keys of both.
        """
        if self.tokens > self.sequences:
            return min(most, self.tokens * self.group)
        return -(-self.group // -(-self.group // most))


def select_tiles(launch: Launch, capabilities: Capabilities) -> Launch:
    """Choose the kernel for a device, and the tile."""
    table, tokens = launch.operands["table"].spec, launch.operands["q"].spec.shape[0]
    rows = Rows(tokens, _count(launch, "group"), table.shape[0])
    v_quads = _count(launch, "v_quads")
    if capabilities.telling_lanes:
        return _lanes(launch, rows, v_quads)
    if capabilities.software:
        return _plain(launch, rows, v_quads)
    if capabilities.subgroups and capabilities.lanes in (0, TEAM) and rows.tokens <= rows.sequences:
        return _teams(launch, rows, v_quads)
    return _tiles(launch, rows, v_quads)


def _teams(launch: Launch, rows: Rows, v_quads: int) -> Launch:
    """Tokens that share no keys, on hardware: lanes of a subgroup read a key together."""
    k_lane, v_lane = (-(-quads // TEAM) for quads in (_count(launch, "k_quads"), v_quads))
    most = max(TEAM_SUMS // max(k_lane, v_lane), 1)
    step = -(-rows.group // -(-rows.group // most))
    choices = {
        "ROWS": step,
        "K_QUADS": k_lane,
        "V_QUADS": v_lane,
        "K_EVEN": k_lane * TEAM == _count(launch, "k_quads"),
        "V_EVEN": v_lane * TEAM == v_quads,
        "BLOCK": _count(launch, "block"),
        "WG": TEAM_THREADS,
    }
    return replace(
        launch,
        shader="attention_token",
        groups=(
            _count(launch, "kv_heads"),
            max(rows.tokens * -(-rows.group // step), 1),
            _count(launch, "splits"),
        ),
        params={**launch.params, "step": step},
        choices={**launch.choices, **choices},
    )


def _lanes(launch: Launch, rows: Rows, v_quads: int) -> Launch:
    step, choices = lane_tile(rows, v_quads)
    return _tiled(replace(launch, shader="attention_lanes"), rows, step, choices)


def lane_tile(rows: Rows, v_quads: int) -> tuple[int, dict[str, str | int]]:
    """Rows of a tile, and choices, of kernels that build on ``lib/lane_tile``."""
    lane_quads = -(-v_quads // LANES)
    step = rows.step(_most(LANE_ROWS, LANE_SUMS // lane_quads))
    return step, {
        "WG": LANES,
        "ROWS": next(n for n in LANE_ROWS if n >= step),
        "POSITIONS": LANE_POSITIONS,
        "LANE_QUADS": lane_quads,
    }


def _plain(launch: Launch, rows: Rows, v_quads: int) -> Launch:
    """A row a work group: tiles through workgroup memory take ten seconds to compile."""
    choices: dict[str, str | int] = {
        "WG": LANES,
        "LANE_QUADS": -(-v_quads // LANES),
        "Q_SIZE": launch.operands["q"].spec.shape[2],
    }
    return _tiled(replace(launch, shader="attention_plain"), rows, 1, choices)


def _tiles(launch: Launch, rows: Rows, v_quads: int) -> Launch:
    chunks = -(-v_quads // CHUNK)
    step = rows.step(_most(THREAD_ROWS, 4 * THREAD_SUMS // chunks))
    size = next(n for n in THREAD_ROWS if n >= step)
    choices: dict[str, str | int] = {
        "ROWS": size,
        "HALF_ROWS": size // 2,
        "QUARTER_ROWS": size // 4,
        "CHUNKS": chunks,
        "WG": 64,
    }
    return _tiled(launch, rows, step, choices)


def _most(sizes: tuple[int, ...], limit: int) -> int:
    """Largest of the sizes that is within a limit; the smallest if none is."""
    return max((n for n in sizes if n <= limit), default=sizes[0])


def _tiled(launch: Launch, rows: Rows, step: int, choices: dict[str, str | int]) -> Launch:
    tiles = max(-(-rows.tokens * rows.group // step), 1)
    return replace(
        launch,
        groups=(_count(launch, "kv_heads"), tiles, _count(launch, "splits")),
        params={**launch.params, "step": step},
        choices={**launch.choices, **choices},
    )


def _count(launch: Launch, name: str) -> int:
    value = launch.params[name]
    assert isinstance(value, int)
    return value
