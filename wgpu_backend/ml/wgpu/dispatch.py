"""From a launch to dispatches: snippets by dtype, parameters by name, one for each weight part."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from wgpu_backend.device.wgsl.module import Choice, Shader, imports, load
from wgpu_backend.errors import DeviceError, DTypeError, ShaderError
from wgpu_backend.graph.capabilities import Capabilities, GroupSizes
from wgpu_backend.graph.node import Groups, Launch, Node, Operation, ParamValue
from wgpu_backend.graph.spec import Shape, Spec, broadcast_strides
from wgpu_backend.graph.wgsl_source import Source
from wgpu_backend.kernels import select
from wgpu_backend.ml.interface import FIELD_OF_OPERAND, check_interface
from wgpu_backend.ml.wgpu.storage import Part, find_part
from wgpu_backend.ops.check import grid_for, pad_to_4d

# Parameters of shaders that count work groups from them, and along which axis.
FIRST_GROUPS = {"first_group_y": 1, "first_group_z": 2}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One dispatch before it has buffers: shader, packed parameters, grid, part of the weights."""

    shader: Shader
    params: bytes
    groups: Groups
    part: int
    work: int


def kernels(
    op: Operation,
    launch: Launch,
    capabilities: Capabilities,
    parts_of: Callable[[Node], tuple[Part, ...]],
    most_work: int = 0,
) -> Iterator[Kernel]:
    """Yield the dispatches of a launch on a device: one for each part of a split operand.

    Parameters
    ----------
    most_work : int
        Work from which on a launch gets several dispatches, if its shader has a parameter of
        `FIRST_GROUPS`: each has some of the work groups along that axis, which compute the same. 0
        for one dispatch whatever its work.
    """
    launch = select(op, launch, capabilities)
    shader, width = _shader(op, launch, capabilities)
    if not isinstance(op.shader, str):
        # Names in ops of the package are checked by its tests, not at every launch.
        check_interface(op.name, launch, shader)
    parts = _parts(op, launch, shader, parts_of)
    specs = _bound_specs(launch, parts_of)
    for index, part in enumerate(parts):
        rows = part.rows if part else _weight_rows(launch)
        groups = _groups(launch, rows, width)
        # Parts have about as many rows each.
        work = launch.work // len(parts)
        cuts = _cut(shader, groups, work, most_work)
        for first, own in cuts:
            values = _params(op, launch, shader, part, specs, first)
            packed = shader.pack(values) if shader.params else b""
            yield Kernel(shader, packed, own, index, work // len(cuts))


def _cut(shader: Shader, groups: Groups, work: int, most_work: int) -> Sequence[tuple[int, Groups]]:
    """Return the first work group and the number of groups of each dispatch."""
    axes = [FIRST_GROUPS[field.name] for field in shader.params if field.name in FIRST_GROUPS]
    if not axes or not 0 < most_work < work:
        return [(0, groups)]
    (axis,), (x, y, z) = axes, groups
    count = min(-(-work // most_work), groups[axis])
    bounds = [at * groups[axis] // count for at in range(count + 1)]
    if axis == 1:
        return [(first, (x, stop - first, z)) for first, stop in pairwise(bounds)]
    return [(first, (x, y, stop - first)) for first, stop in pairwise(bounds)]


def _parts(
    op: Operation,
    launch: Launch,
    shader: Shader,
    parts_of: Callable[[Node], tuple[Part, ...]],
) -> Sequence[Part | None]:
    """Return the parts of the split operand, one dispatch each; (None,) if none is split.

    Raises
    ------
    DeviceError
        The kernel does not know of parts, or is given a slice of a split weight.
    """
    found: tuple[Part, ...] = ()
    for name, node in launch.operands.items():
        parts, _ = find_part(node, parts_of(node))
        if len(parts) < 2:
            continue
        rows = sum(part.rows for part in parts)
        # Only kernels with this field count rows from the start of the whole weight.
        knows = any(field.name == "first_row" for field in shader.params)
        if not knows or node.spec.offset or rows * node.spec.shape[-1] != node.spec.size:
            raise DeviceError(
                f"{op.name}: {name} of {node.spec.shape} is a weight split over {len(parts)} "
                f"bindings of the device, {rows} rows in all; only products and rows() read across "
                "bindings, so gather its rows with rows() first"
            )
        found = parts
    return found or (None,)


def _weight_rows(launch: Launch) -> int:
    weights = launch.operands.get("weights")
    return weights.spec.shape[-2] if weights is not None else 0


def _groups(launch: Launch, rows: int, width: int) -> Groups:
    if launch.groups is None:
        threads = launch.threads(rows) if callable(launch.threads) else launch.threads or 0
        return grid_for(-(-threads // width))
    return launch.groups(rows) if callable(launch.groups) else launch.groups


def _shader(op: Operation, launch: Launch, capabilities: Capabilities) -> tuple[Shader, int]:
    """Load the shader of a launch; also return the items that a work group covers."""
    path: Source = launch.shader or op.shader
    declared = imports(path)
    choices: dict[str, Choice] = dict(launch.choices)
    if not isinstance(op.shader, str):
        choices = {**_layouts(launch, declared.parameters), **choices}
    for name, spec in _specs_by_name(launch).items():
        if name in declared.modules and name not in choices:
            choices[name] = _snippet(op.name, name, declared.modules[name], spec)
    sizes = capabilities.group_sizes
    turns, width = 1, sizes.threads
    if "ITEMS_PER_THREAD" in declared.parameters and launch.groups is None:
        turns = int(choices.setdefault("ITEMS_PER_THREAD", sizes.items_per_thread))
    if "WG" in declared.parameters:
        width = int(choices.setdefault("WG", _width(launch, sizes, turns)))
    return load(path, choices, trusted=op.trusted), turns * width


def _layouts(launch: Launch, parameters: Collection[str]) -> dict[str, Choice]:
    """Return the shader constants by which files of ``lib/elementwise`` detect strided operands.

    Ops of the package set these constants themselves.
    """
    found: dict[str, Choice] = {}
    for name, node in launch.operands.items():
        dense = node.spec.is_dense and node.spec.shape == launch.out.shape
        for parameter in ("DENSE", f"{name.upper()}_DENSE"):
            if parameter in parameters and not dense:
                found[parameter] = False
    return found


def _width(launch: Launch, sizes: GroupSizes, turns: int) -> int:
    """Choose the threads per work group: `few` for small launches and several items per thread."""
    threads = 0 if callable(launch.threads) else launch.threads or 0
    return sizes.threads if threads >= sizes.many and turns == 1 else sizes.few


def _specs_by_name(launch: Launch) -> dict[str, Spec]:
    return {**{name: node.spec for name, node in launch.operands.items()}, "y": launch.out}


def _snippet(op: str, name: str, default: str, spec: Spec) -> str:
    folder = default.rpartition("/")[0]
    if folder not in ("formats/dequant", "formats/quantise") and spec.dtype.quantised:
        raise DTypeError(
            f"{op}: {name} is {spec.dtype}, which only products, rows and cast can read"
        )
    # The declared import names the folder; the operand's type names the file.
    return f"{folder}/{spec.dtype}"


def _bound_specs(launch: Launch, parts_of: Callable[[Node], tuple[Part, ...]]) -> dict[str, Spec]:
    """Return specs as bindings show them: a slice of a split weight counts from its part."""
    specs = _specs_by_name(launch)
    for name, node in launch.operands.items():
        _, before = find_part(node, parts_of(node))
        if before:
            specs[name] = replace(node.spec, offset=node.spec.offset - before)
    return specs


def _params(
    op: Operation,
    launch: Launch,
    shader: Shader,
    part: Part | None,
    specs: Mapping[str, Spec],
    first_group: int,
) -> dict[str, ParamValue]:
    """Return the values of the shader's fields: the op's own, then those of specs and parts."""
    values: dict[str, ParamValue] = {}
    for field in shader.params:
        if field.name in launch.params:
            values[field.name] = launch.params[field.name]
        elif field.name == "first_row":
            values[field.name] = part.first_row if part else 0
        elif field.name in FIRST_GROUPS:
            values[field.name] = first_group
        else:
            values[field.name] = _field(op, field.name, specs, launch, part)
    return values


def _field(
    op: Operation, field: str, specs: Mapping[str, Spec], launch: Launch, part: Part | None
) -> ParamValue:
    if field == "size":
        return launch.out.size
    if field == "shape":
        return pad_to_4d(launch.out.shape, 1)
    found = FIELD_OF_OPERAND.match(field)
    if not found:
        raise ShaderError(f"{op.name}: Params has {field}, the op gives {sorted(launch.params)}")
    name, what = found["operand"], found["what"]
    if launch.choices.get(name) == "=y":
        # An operand merged into the result lies where the result lies.
        name = "y"
    if name not in specs:
        raise ShaderError(f"{op.name}: Params has {field}, operands are {sorted(specs)}")
    spec = specs[name]
    if what == "offset":
        # A new result begins at its buffer's start; one written into a view begins where the view
        # does.
        return 0 if name == "y" and launch.into is None else spec.offset
    if what == "rows":
        return part.rows if part else spec.shape[-2]
    # For ops from outside, axes of one value get stride 0, so that the value repeats.
    outside = not isinstance(op.shader, str)
    strides = broadcast_strides(spec, spec.shape) if outside else spec.strides
    return _get_fact(what, spec, strides)


def _get_fact(what: str, spec: Spec, strides: Shape) -> ParamValue:
    if what == "group":
        return spec.offset // 32
    if what == "size":
        return spec.size
    return pad_to_4d(spec.shape, 1) if what == "shape" else pad_to_4d(strides, 0)
