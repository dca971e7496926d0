"""The portable kernels of `linear`: every prologue and every epilogue, on any WebGPU device.

Rows of x are read as f32 whatever their form, so one kernel serves all prologues. Epilogues that
take rows of the result together, by groups of 32 or squares of 64, have a kernel of their own.
Forms that only save a dispatch where a family has a fast kernel are a last resort here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Groups, Launch
from wgpu_backend.ops.check import grid_for, require
from wgpu_backend.ops.layouts.planes import plane_nbytes
from wgpu_backend.ops.linear.attributes import VALUES, Epilogue, get_attributes
from wgpu_backend.ops.linear.f16_groups import is_planar
from wgpu_backend.ops.linear.gates import joined_rows, require_whole
from wgpu_backend.ops.linear.normed import SQUARED, square_count
from wgpu_backend.ops.linear.q8 import PLANAR

IN_GROUPS = "ops/linear/linear_in_groups"
# Of a work group.
THREADS, ROWS, COLUMNS = 64, 2, 4
Choices = Mapping[str, str | int | float]


def select_portable(launch: Launch, capabilities: Capabilities) -> Launch:
    """Select the kernel, and how it reads x and makes rows of the result.

    Raises
    ------
    DeviceError
        The device shows a kernel too few buffers, or rows that belong together lie in several.
    """
    require_whole(launch)
    form = get_attributes(launch).prologue.form
    require(
        form not in ("f16_rows", "f16_columns"),
        DeviceError,
        f"linear: the device has no kernel for x in {form}; needs a GPU with arithmetic in f16, "
        "for f16_rows with matrix units, or the values as they are",
    )
    _require_bindings(launch, capabilities)
    epilogue, prologue = get_attributes(launch).epilogue, get_attributes(launch).prologue
    # Other attributes save a dispatch and cost more than the ops that they replace.
    pays = epilogue == Epilogue(epilogue.activation) and (prologue == VALUES or prologue.in_bytes)
    choices = {**launch.choices, **_prologue(launch)}
    launch = replace(launch, choices=choices, last_resort=not pays)
    return _in_groups(launch) if epilogue.norm or epilogue.is_rounded else _by_rows(launch)


def storage_bindings(launch: Launch) -> int:
    """Count the storage bindings of a product: planes of its weight, other operands, its result."""
    dtype = launch.operands["weights"].spec.dtype
    planes = len(plane_nbytes(dtype)) if dtype.quantised else 1
    return planes + len(launch.operands)


def _require_bindings(launch: Launch, capabilities: Capabilities) -> None:
    """Raise DeviceError if a launch needs more storage bindings than a kernel may have."""
    weight, found = launch.operands["weights"].spec, get_attributes(launch)
    # Groups in f16 are read through one of their two bindings.
    needs = storage_bindings(launch) - found.prologue.in_f16
    most = capabilities.max_storage_bindings
    require(
        needs <= most,
        DeviceError,
        f"linear: {weight.dtype} weights of {weight.shape} with {found.prologue} and "
        f"{found.epilogue} need {needs} storage buffers, the device binds {most}; make the norm by "
        "rms_norm",
    )


def _prologue(launch: Launch) -> Choices:
    """Return the shader choices that read rows of x, and compute the factor of a norm."""
    prologue = get_attributes(launch).prologue
    normed = {"NORMED": prologue.eps is not None}
    if prologue.in_bytes:
        planar = launch.choices["x"] == PLANAR
        return {**normed, "x": "lib/linear_prologue/q8", "PLANAR": planar, "PARTS": prologue.parts}
    if prologue.form == "q16":
        return {**normed, "x": "lib/linear_prologue/q16"}
    if prologue.in_f16:
        planar = is_planar(launch.operands["weights"].spec.dtype)
        nibbles = prologue.form == "f16_nibbles"
        return {**normed, "x": "lib/linear_prologue/f16", "PLANAR": planar, "NIBBLES": nibbles}
    return {**normed, "x": f"lib/linear_prologue/{'norm' if prologue.norm else 'values'}"}


def _columns(launch: Launch) -> int:
    """Return the number of columns of the result."""
    return launch.count("n") // get_attributes(launch).prologue.parts


def _by_rows(launch: Launch) -> Launch:
    """Return a launch whose lanes stride over k, with a few rows and columns per workgroup."""
    n, joins = _columns(launch), joined_rows(launch)
    columns, sources = min(n, COLUMNS) or 1, ROWS * joins
    squares = 0 if get_attributes(launch).prologue.eps is None else columns

    def groups(weight_rows: int) -> Groups:
        x, y, _ = grid_for(-(-weight_rows // sources))
        return (x, y, -(-n // columns))

    sizes = {"WG": THREADS, "ROWS": ROWS, "SOURCES": sources, "COLS": columns}
    sums = {"SUMS": sources * columns + squares}
    return replace(launch, groups=groups, choices={**launch.choices, **sizes, **sums})


def _in_groups(launch: Launch) -> Launch:
    """Return a launch of one lane per row, whose work groups cover rows that share squares."""
    found, m = get_attributes(launch).epilogue, launch.count("m")
    name = "rounded" if found.is_rounded and not found.norm else "weighted_sum"
    name = "rounded_sum" if found.is_rounded and found.norm else name
    # Rows with squares are padded with zeros to a whole vector, which work groups write, too.
    blocks = -(-m // SQUARED) if found.is_rounded else square_count(m)
    x, y, _ = grid_for(blocks)
    sizes = {
        "WG": SQUARED,
        "SOURCES": joined_rows(launch),
        "epilogue": f"lib/linear_epilogue/{name}",
        **(_rounding(found) if found.is_rounded else {}),
    }
    return replace(
        launch,
        shader=IN_GROUPS,
        groups=(x, y, _columns(launch)),
        choices={**launch.choices, **sizes},
    )


def _rounding(epilogue: Epilogue) -> Choices:
    """Return the shader choices by which groups of results are rounded."""
    if epilogue.form == "q16":
        return {"rounding": "lib/linear/rounding_in_q16"}
    planar = {"rounding_PLANAR": epilogue.planar}
    if epilogue.form == "q8":
        return planar
    nibbles = {"rounding_NIBBLES": epilogue.form == "f16_nibbles"}
    return {**planar, **nibbles, "rounding": "lib/linear/rounding_in_f16"}
