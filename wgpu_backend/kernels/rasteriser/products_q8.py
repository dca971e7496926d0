"""Products of weights in blocks with activations in eight bits, a lane making rows of its own."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.device_info import Capabilities
from wgpu_backend.dtypes import Q4_0, Q4_1, Q4_K, Q5_0, Q5_1
from wgpu_backend.graph.node import Groups, Launch
from wgpu_backend.kernels.rasteriser.images import groups_in_image, lies_in_image
from wgpu_backend.kernels.rasteriser.strips import strip_groups, strip_length
from wgpu_backend.ops.check import grid_for
from wgpu_backend.ops.gates import joined_rows, require_whole
from wgpu_backend.ops.q8 import GROUP, OWN
from wgpu_backend.ops.tiles import LANES, chosen, even_share

SHADER = "kernels/rasteriser/mulmat_q8"
# Formats of which two groups in one turn of the loop still are short enough for a core's caches,
# and how many columns leave registers for it.
SHORT = (Q4_0, Q4_1, Q5_0, Q5_1, Q4_K)
SHORT_COLUMNS = 2


def product(launch: Launch, capabilities: Capabilities) -> Launch:
    """Multiply with weights, in strips of rows, from buffers or textures."""
    require_whole(launch)
    n = launch.count("n")
    stream = lies_in_image(launch, "weights", capabilities)
    dtype = launch.operands["weights"].spec.dtype
    tile = chosen(capabilities, "mulmat_q8_stream" if stream else "mulmat_q8_lanes", dtype, n)
    whole = stream or "ending" in launch.choices
    rows = GROUP // LANES if whole else tile.rows
    length = 1 if whole else strip_length(launch.out.shape[-1], rows)
    sources, parts = joined_rows(launch), int(launch.choices.get("PARTS", 1))
    columns = parts * even_share(n // parts, tile.columns // parts)

    def groups(weight_rows: int) -> Groups:
        x, y, _ = grid_for(strip_groups(weight_rows // sources, rows, length))
        return (x, y, -(-n // columns))

    sizes = {"COLS": columns, "ROWS": rows, "SOURCES": sources, "WG": LANES}
    choices = {**launch.choices, **sizes, "sums": "sums/pairs"}
    choices |= _from_stream(launch) if stream else _from_planes(launch, columns, length)
    if capabilities.telling_lanes:
        if launch.choices["x"] == OWN:
            choices["x"] = "rasteriser/column"
        choices |= {} if stream else {"words": "rasteriser/words"}
    return replace(launch, shader=SHADER, groups=groups, choices=choices)


def _from_stream(launch: Launch) -> dict[str, str | int]:
    """Choices of a product that reads a weight as `layouts.streams` lays it out."""
    return {**groups_in_image(launch, "weights"), "GROUPS": launch.count("groups")}


def _from_planes(launch: Launch, columns: int, length: int) -> dict[str, str | int]:
    """Choices of a product that reads a weight's planes, in strips of some rows."""
    block = groups_of_a_turn(launch, columns)
    known = _known_groups(launch)
    return {"BLOCK": block, "AT_ONCE": block, "GROUPS": known, "STRIP": length}


def _known_groups(launch: Launch) -> int:
    """Groups of a row where a kernel that knows them pays for being one more; 0 elsewhere."""
    short = launch.operands["weights"].spec.dtype in SHORT
    return launch.count("groups") if short else 0


def groups_of_a_turn(launch: Launch, columns: int) -> int:
    """Groups of one turn of the loop, whose scales one load brings; sums of many leave one room."""
    even = launch.count("groups") % 2 == 0
    short = launch.operands["weights"].spec.dtype in SHORT
    return 2 if even and short and columns <= SHORT_COLUMNS else 1
