"""A check that a custom op and its WGSL fit together, made before the shader is compiled.

Bindings and fields are found by their names, so a wrong name is the likeliest mistake in a new op.
Every error points at the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from wgpu_backend.device.wgsl.module import Shader
from wgpu_backend.dtypes import COMPLEX64, F16, F32, I32, U32, DType
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ops.layouts.layout import find_layout
from wgpu_backend.ops.layouts.planes import plane_nbytes

_MAIN = re.compile(r"^\s*(?:@\w+(?:\([^)]*\))?\s*)*fn main\b", re.MULTILINE)
_CHOSEN = r"@workgroup_size\(\s*WG\b"
_WG = r"^(?:const|override) WG\b[^=;]*= "  # as the composer replaces it
_OVER_GROUPS = r"\bglobal_invocation_id\b"
_VARIABLE = r"var<(?:storage|uniform)[^>]*>\s*(\w+)"
_COMMENT = re.compile(r"//.*$", re.MULTILINE)
_TYPED = re.compile(_VARIABLE + r"\s*:\s*(?P<type>[^;]*[^;\s])")
_ELEMENT = re.compile(
    r"(?:(?:array|vec[234]|mat[234]x[234])<)*(?:vec[234])?(?P<of>f32\b|f16\b|(?<=vec[234])[fh]\b)"
)
# What floats of WGSL hold; words of u32 and i32 hold the bits of any type.
_HOLD = {"f32": (F32, COMPLEX64), "f": (F32, COMPLEX64), "f16": (F16,), "h": (F16,)}
# Fields that are filled from an operand, and those filled from the result.
FIELD_OF_OPERAND = re.compile(r"(?P<operand>\w+)_(?P<what>offset|size|shape|strides|rows|group)$")
FIELDS_OF_RESULT = frozenset({"first_row", "size", "shape"})


def check_interface(op: str, launch: Launch, shader: Shader) -> None:
    """Refuse a shader whose names are not those of its launch.

    Raises
    ------
    ShaderError
        An entry point, a binding or a field is missing, or unknown.
    """
    _check_entry(launch, shader)
    _check_form(shader)
    _check_bindings(op, launch, shader)
    _check_types(op, launch, shader)
    _check_params(op, launch, shader)


def _check_entry(launch: Launch, shader: Shader) -> None:
    if not _MAIN.search(_strip_comments(shader.text)):
        raise shader.make_error_at(
            r"\bfn (\w+)",
            "there is no entry point main, needs `@compute @workgroup_size(WG) fn main(…)`",
        )
    chosen = re.search(_CHOSEN, shader.text)
    if launch.groups is None and not chosen:
        raise shader.make_error_at(
            r"(@workgroup_size\([^)]*\))",
            "the launch counts threads, so the device chooses how many make a work group; "
            "needs `const WG: u32 = 64u;` and `@workgroup_size(WG)`, or a launch with groups=",
        )
    if chosen and not re.search(_WG, shader.text, re.MULTILINE):
        raise shader.make_error_at(
            r"\bconst\s+(WG)\b",
            "the device cannot set WG here, needs `const WG: u32 = 64u;` at the start of a line",
        )
    # A kernel may give a row to each work group, whatever its size, but not count all threads.
    counts = re.search(_OVER_GROUPS, _strip_comments(shader.text))
    if chosen and counts and launch.groups is not None and "WG" not in launch.choices:
        raise shader.make_error_at(
            _OVER_GROUPS,
            "the launch counts work groups, and the device chooses how many threads each has, "
            "so these may reach a part of the result; needs threads= in place of groups=, or "
            'choices={"WG": 64}',
        )


def _check_form(shader: Shader) -> None:
    """Refuse bindings that are not written in the one supported form."""
    known = {b.name for b in shader.bindings}
    for found in re.finditer(_VARIABLE, _strip_comments(shader.text)):
        if found[1] not in known:
            raise shader.make_error_at(
                rf"var<[^>]*>\s*({found[1]})\b",
                f"binding {found[1]} needs the form `@group(0) @binding(0) var<storage, read> "
                f"{found[1]}: array<f32>;` on one line, with read, read_write or uniform",
            )


def _check_bindings(op: str, launch: Launch, shader: Shader) -> None:
    names = {"y"}
    for name, node in launch.operands.items():
        names |= {f"{name}_{plane}" if plane else name for plane in _binding_suffixes(node)}
    declared = {b.name: b for b in shader.bindings if b.access != "uniform"}
    for name in declared:
        if name not in names:
            raise shader.make_error_at(
                rf"var<storage[^>]*>\s*({name})\b",
                f"binding {name} is not an operand of {op}, which has {_list(names - {'y'})}, "
                "and y for the result",
            )
    if "y" not in declared or declared["y"].access != "read_write":
        raise shader.make_error_at(
            r"var<storage[^>]*>\s*(y)\b|fn main",
            f"{op} writes its result into y, needs a binding `var<storage, read_write> y`",
        )


def _binding_suffixes(node: Node) -> list[str]:
    """Return the suffixes of an operand's bindings: its planes, and the data its layout packs."""
    layout = find_layout(node)
    return [*plane_nbytes(node.spec.dtype), *([layout.binding] if layout else [])]


class _Floats(NamedTuple):
    """A binding whose elements are floats, and the place of its type."""

    name: str
    declared: str
    holds: tuple[DType, ...]
    line: int
    column: int


def _check_types(op: str, launch: Launch, shader: Shader) -> None:
    """Refuse float bindings of data of other types: its bits would be read as numbers.

    Nothing is said of words of u32 and i32, which may be any type's bits; nor of a file with a
    bitcast; nor where operand and result are both declared so, as values may be moved unseen.
    """
    dtypes = {n: node.spec.dtype for n, node in launch.operands.items()} | {"y": launch.out.dtype}
    wrong = [b for b in _list_floats(shader) if b.name in dtypes and dtypes[b.name] not in b.holds]
    of_y = [(dtypes["y"], b.holds) for b in wrong if b.name == "y"]
    alike = [b for b in wrong if [(dtypes[b.name], b.holds)] == of_y]
    # Operands and result of one wrong type: values are moved, and keep their bits.
    moved = len(alike) > 1 and dtypes["y"].block_nbytes >= F32.block_nbytes
    for binding in wrong:
        if not (moved and binding in alike):
            what = _remedy(op, binding, dtypes[binding.name])
            raise shader.make_error(binding.line, binding.column, what)


def _list_floats(shader: Shader) -> Sequence[_Floats]:
    return _cache_floats(shader.text, shader.origins)


# Each launch of a graph that is computed again comes here.
@lru_cache(maxsize=256)
def _cache_floats(text: str, origins: tuple[str, ...]) -> Sequence[_Floats]:
    return tuple(_find_floats(text, origins))


@lru_cache(maxsize=256)
def _strip_comments(text: str) -> str:
    """Return the text of a shader without comments."""
    return _COMMENT.sub("", text)


def _find_floats(text: str, origins: Sequence[str]) -> Iterator[_Floats]:
    lines = _strip_comments(text).splitlines()
    files = [origin.rpartition(":")[0] for origin in origins]
    # A file that casts bits reads those of other types on purpose.
    casting = {f for line, f in zip(lines, files, strict=False) if "bitcast<" in line}
    for number, (line, file) in enumerate(zip(lines, files, strict=False), 1):
        found = _TYPED.search(line)
        element = _ELEMENT.match(found["type"].replace(" ", "")) if found else None
        if found and element and file not in casting:
            holds = _HOLD[element["of"]]
            yield _Floats(found[1], found["type"], holds, number, found.start("type") + 1)


def _remedy(op: str, binding: _Floats, dtype: DType) -> str:
    name = binding.name
    whose = "the result" if name == "y" else f"operand {name}"
    what = f"binding {name} is {binding.declared}, {whose} is {dtype}"
    if dtype in (I32, U32):
        return f"{what}; needs array<{dtype}>"
    module, does = ("store", "writes") if name == "y" else ("load", "reads")
    return (
        f"{what}; `// @import formats/{module}/f32 as {name}` {does} any type, or take f32 alone: "
        f'require_dtype("{op}", "NAME", node, (F32,))'
    )


def _check_params(op: str, launch: Launch, shader: Shader) -> None:
    fields = {f.name for f in shader.params}
    operands = [*launch.operands, *(name for name, file in launch.choices.items() if file == "=y")]
    for name in sorted(fields - set(launch.params) - FIELDS_OF_RESULT):
        found = FIELD_OF_OPERAND.match(name)
        if not found or found["operand"] not in (*operands, "y"):
            raise shader.make_error_at(
                rf"\b({name})\s*:",
                f"Params has {name}, {op} gives {_list(launch.params)}; add it to the Launch: "
                f'params={{"{name}": …}}. Set without that: size and shape of the result, and '
                f"of each of {_list([*operands, 'y'])} NAME_offset, NAME_size, NAME_shape and "
                "NAME_strides",
            )
    # A kernel other than the op's own may use fewer.
    unused = sorted(set(launch.params) - fields)
    if unused and launch.shader == "":
        raise shader.make_error_at(
            r"struct (Params)|fn main",
            f"{op} gives {_list(unused)}, Params has {_list(fields)}",
        )
    if fields and not any(b.access == "uniform" for b in shader.bindings):
        raise shader.make_error_at(
            r"struct (Params)",
            "Params is declared, needs `@group(0) @binding(0) var<uniform> params: Params;`",
        )


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
