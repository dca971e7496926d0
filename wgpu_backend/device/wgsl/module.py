"""Shaders ready for a device: composed WGSL, and the interface read from it.

Bindings and ``struct Params`` are read from the composed text, so that they are written once;
bindings are numbered anew in order of appearance, so a snippet may declare its own. See
`wgpu_backend.device.wgsl.composer` for how text is composed and which choices a shader has.

This file handles text only, without a device or an op.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from wgpu_backend.device.wgsl.composer import (
    Choice,
    Composer,
    Origin,
    rename_merged,
    require_values,
    unroll,
)
from wgpu_backend.errors import ShaderError
from wgpu_backend.graph.wgsl_source import Source, display, stem

Access = Literal["read", "read_write", "uniform", "texture"]

_TEXTURE = "texture_storage_2d<rgba32uint, read>"
_BINDING = re.compile(
    r"@group\(0\) @binding\(\d+\) "
    r"var(?:<(?P<kind>storage, read_write|storage, read|uniform)>|(?= \w+: " + _TEXTURE + "))"
    r" (?P<name>\w+)"
)
_NUMBER = re.compile(r"@binding\(\d+\)")
_FIELDS = re.compile(r"struct Params \{(?P<body>[^}]*)\}", re.DOTALL)
_FIELD = re.compile(r"(?P<name>\w+)\s*:\s*(?P<type>[\w<>]+)")
_COMMENT = re.compile(r"//.*$", re.MULTILINE)
_ACCESS: dict[str, Access] = {
    "storage, read": "read",
    "storage, read_write": "read_write",
    "uniform": "uniform",
    _TEXTURE: "texture",
}
_SCALARS = {"u32": "I", "i32": "i", "f32": "f", "vec4<u32>": "4I"}


@dataclass(frozen=True, slots=True)
class BindingDecl:
    """A binding as the WGSL declares it."""

    name: str
    index: int
    access: Access


@dataclass(frozen=True, slots=True)
class ParamField:
    """A field of ``struct Params``: WGSL type and byte offset."""

    name: str
    type: str
    offset: int


@dataclass(frozen=True, slots=True)
class Shader:
    """A composed shader, ready for a device.

    Parameters
    ----------
    label : str
        Name for people: file and the choices that differ from its defaults.
    text : str
        The WGSL.
    origins : tuple of str
        ``file:line`` of each line of `text`.
    bindings : tuple of BindingDecl
        In binding order.
    params : tuple of ParamField
        Layout of ``struct Params``; empty when there is none.
    entry : str
        Entry point.
    trusted : bool
        May run without bounds clamping: it stays inside its buffers for every input.
    places : mapping of (str, str) to (str, str)
        Where files are imported, by file and name: ``file:line``, and that line.
    """

    label: str
    text: str
    origins: tuple[Origin, ...] = field(repr=False)
    bindings: tuple[BindingDecl, ...]
    params: tuple[ParamField, ...] = ()
    entry: str = "main"
    trusted: bool = False
    places: Mapping[tuple[str, str], tuple[Origin, str]] = field(
        default_factory=dict[tuple[str, str], tuple[Origin, str]], repr=False, compare=False
    )

    def make_error(self, line: int, column: int, what: str) -> ShaderError:
        """Return an error at a place counted from 1: ``label: file:line: what``, line and caret."""
        origin = self.origins[line - 1] if line <= len(self.origins) else f"line {line}"
        shown = self.text.splitlines()[line - 1]
        gutter = f"{origin.rpartition(':')[2]} │ "
        caret = " " * (len(gutter) + column - 1) + "^"
        return ShaderError(f"{self.label}: {origin}: {what}\n{gutter}{shown}\n{caret}")

    def make_error_at(self, declaration: str, what: str) -> ShaderError:
        """Return an error at the first match of a regular expression, or at its first group.

        What has the name that an import gave it is shown at that import.
        """
        for number, line in enumerate(_COMMENT.sub("", self.text).splitlines(), 1):
            if found := re.search(declaration, line):
                first = found.re.groups and 1
                named = self._error_at_import(number, found[first] or "", what)
                return named or self.make_error(number, found.start(first) + 1, what)
        place = f"{self.origins[-1]}: " if self.origins else "it is empty: "
        return ShaderError(f"{self.label}: {place}{what}")

    def _error_at_import(self, line: int, name: str, what: str) -> ShaderError | None:
        """Return an error about a name from an import, at the outermost import that led to it."""
        place = self._find_import(self.origins[line - 1], name)
        if place is None:
            return None
        # At most one step per import: files may import each other in a circle.
        for _ in self.places:
            place = self._find_import(place[0]) or place
        origin, shown = place
        gutter = f"{origin.rpartition(':')[2]} │ "
        caret = " " * (len(gutter) + shown.rindex(shown.split()[-1])) + "^"
        return ShaderError(f"{self.label}: {origin}: {what}\n{gutter}{shown}\n{caret}")

    def _find_import(self, origin: Origin, name: str = "") -> tuple[Origin, str] | None:
        """Find the import of a line's file, or the one that gave a name."""
        file = origin.rpartition(":")[0]
        for (imported, given), place in self.places.items():
            if imported == file and (not name or name == given or name.startswith(f"{given}_")):
                return place
        return None

    def pack(self, values: Mapping[str, float | Sequence[int]]) -> bytes:
        """Pack `values` as ``struct Params``.

        Raises
        ------
        ShaderError
            A field has no value, a value has no field, or one does not fit into its own.
        """
        names = {f.name for f in self.params}
        if names != set(values):
            raise ShaderError(
                f"{self.label}: Params needs {sorted(names)}, the op gives {sorted(values)}"
            )
        size = _params_size(self.params)
        buffer = bytearray(size)
        for f in self.params:
            try:
                numbers = _numbers(f.type, values[f.name])
                struct.pack_into("<" + _SCALARS[f.type], buffer, f.offset, *numbers)
            except (TypeError, ValueError, OverflowError, struct.error):
                what = f"{f.name} is {f.type}, the op gives {values[f.name]!r}"
                raise self.make_error_at(rf"\b({f.name})\s*:", what) from None
        return bytes(buffer)


def _numbers(kind: str, value: float | Sequence[int]) -> Sequence[float]:
    """Return the values of a field; raise an error if an integer would truncate one."""
    parts = value if isinstance(value, Sequence) else (value,)
    if kind == "f32":
        return parts
    whole = [int(part) for part in parts]
    # `struct` would truncate 2.5 without an error.
    if any(a != b for a, b in zip(whole, parts, strict=True)):
        raise ValueError
    return whole


def _params_size(params: Sequence[ParamField]) -> int:
    end = max((f.offset + struct.calcsize("<" + _SCALARS[f.type]) for f in params), default=0)
    # WGSL rounds a uniform struct up to 16 bytes.
    return -(-end // 16) * 16


def load(
    path: Source, choices: Mapping[str, Choice] | None = None, *, trusted: bool = False
) -> Shader:
    """Compose a shader from its file.

    Parameters
    ----------
    path : str, Path or Inline
        A name below ``shaders/`` without suffix, the path of a file elsewhere, or text.
    choices : mapping
        Parameter or import name to its value. For an import, the file to take; ``"=y"`` makes the
        import's functions those of binding ``y`` (an operand computed in place).
    trusted : bool
        See `Shader`.

    Raises
    ------
    ShaderError
        The file is missing, or declares no parameter of a chosen name.
    """
    return _load(path, tuple(sorted((choices or {}).items())), trusted)


@dataclass(frozen=True, slots=True)
class Declared:
    """The choices that a shader declares: named imports with their defaults, and parameters."""

    modules: Mapping[str, str]
    parameters: frozenset[str]


@lru_cache(maxsize=1024)
def imports(path: Source) -> Declared:
    """Read what a shader declares, its imports followed with their defaults.

    Raises
    ------
    ShaderError
        A file is missing.
    """
    composer = Composer({})
    for _ in composer.lines(path):
        pass
    return Declared(composer.modules, frozenset(composer.constants))


def forget() -> None:
    """Read every file again from now on, as it may change during development."""
    imports.cache_clear()
    _load.cache_clear()


@lru_cache(maxsize=4096)
def _load(path: Source, choices: tuple[tuple[str, Choice], ...], trusted: bool) -> Shader:
    composer = Composer(dict(choices))
    lines = list(composer.lines(path))
    unknown = sorted(set(composer.choices) - composer.used)
    if unknown:
        known = ", ".join(sorted({*composer.constants, *composer.modules})) or "nothing to choose"
        raise ShaderError(f"{display(path)} declares no {', '.join(unknown)}, it has {known}")
    lines = rename_merged(unroll(lines, composer.constants), composer.merged)
    require_values(lines)
    text, bindings = _number_bindings("\n".join(line for line, _ in lines))
    origins = tuple(origin for _, origin in lines)
    params = _params(text, origins)
    label = _label(path, composer.taken)
    text = _enable(text)
    shader = Shader(label, text, origins, bindings, params, trusted=trusted, places=composer.places)
    return _check_duplicates(shader)


def _label(source: Source, taken: Sequence[str]) -> str:
    return f"{stem(source)}({', '.join(sorted(taken))})" if taken else stem(source)


def _check_duplicates(shader: Shader) -> Shader:
    """Return `shader`, unless it declares a binding twice."""
    first: dict[str, Origin] = {}
    for number, line in enumerate(_COMMENT.sub("", shader.text).splitlines(), 1):
        for found in _BINDING.finditer(line):
            name = found["name"]
            if name in first:
                what = f"binding {name} is declared again, first at {first[name]}"
                raise shader.make_error(number, found.start("name") + 1, what)
            first[name] = shader.origins[number - 1]
    return shader


def _number_bindings(text: str) -> tuple[str, tuple[BindingDecl, ...]]:
    """Give the bindings numbers in order of appearance, the uniform last."""
    found = _BINDING.finditer(_COMMENT.sub("", text))
    order = sorted(found, key=lambda m: m["kind"] == "uniform")
    index = {m["name"]: i for i, m in enumerate(order)}

    def replace(m: re.Match[str]) -> str:
        # A binding that only a comment mentions has no number, and keeps its text.
        number = index.get(m["name"])
        return m[0] if number is None else _NUMBER.sub(f"@binding({number})", m[0])

    decls = tuple(
        BindingDecl(m["name"], index[m["name"]], _ACCESS[m["kind"] or _TEXTURE]) for m in order
    )
    return _BINDING.sub(replace, text), decls


def _params(text: str, origins: Sequence[Origin]) -> tuple[ParamField, ...]:
    bare = _COMMENT.sub("", text)
    found = _FIELDS.search(bare)
    if not found:
        return ()
    fields: list[ParamField] = []
    offset = 0
    for m in _FIELD.finditer(found["body"]):
        if m["type"] not in _SCALARS:
            origin = origins[bare.count("\n", 0, found.start("body") + m.start())]
            raise ShaderError(
                f"{origin}: Params: {m['name']} is {m['type']}, needs {', '.join(_SCALARS)}"
            )
        # WGSL's alignment of fields.
        align = 16 if m["type"].startswith("vec4") else 4
        offset = -(-offset // align) * align
        fields.append(ParamField(m["name"], m["type"], offset))
        offset += align
    return tuple(fields)


def _enable(text: str) -> str:
    """Enable f16 on the first line where the text uses it, so that the number of lines stays."""
    if not re.search(r"\bf16\b", _COMMENT.sub("", text)):
        return text
    return "enable f16; " + text
