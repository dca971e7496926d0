"""Composition of WGSL files, specialised by rewriting their own declarations.

A shader's template variables are what it declares at column 0: ``alias X = …;``, ``const X = …;``
and ``override X = …;`` are parameters with defaults, and so is every named import::

    // @import lib/reduce/reduce               included once
    // @import formats/dequant/q4_0 as weights    the file with `buf` renamed to `weights`
    // @unroll                          the `for` below, with literal bounds, body by body

Each composed line remembers the file and line it came from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from wgpu_backend.errors import ShaderError
from wgpu_backend.graph.wgsl_source import (
    Source,
    display,
    find_import,
    first_line,
    read,
    stem,
    suggest_path,
)

Choice = str | int | float | bool | np.generic
Origin = str

_IMPORT = re.compile(r"^// @import (?P<path>[\w/]+)(?: as (?P<name>\w+))?\s*$")
_PARAMETER = re.compile(
    r"^(?P<head>(?:alias|const|override) (?P<name>\w+)(?:\s*:\s*(?P<type>\w+))?[^=;]*= )[^;]+;"
)
_NO_VALUE = re.compile(r"^\s*var(?:<function>)?\s+(?P<name>\w+)\s*:\s*(?P<type>[^=;]+);")
_LOOP_HEAD = re.compile(r"^\s*(?:for|while|loop)\b")
_LOOP = re.compile(
    r"^(?P<indent>\s*)for \(var (?P<name>\w+)(?:: \w+)? = (?P<low>\w+); "
    r"(?P=name) < (?P<high>\w+); (?P=name)(?:\+\+| \+= 1u?)\) \{$"
)


class Composer:
    """A resolver of imports and parameters of a shader; `used`: the choices with an effect."""

    def __init__(self, choices: dict[str, Choice]) -> None:
        self.choices = choices
        self.used: set[str] = set()
        self.taken: list[str] = []
        self.merged: dict[str, str] = {}
        self.constants: dict[str, str] = {}
        self.modules: dict[str, str] = {}
        # Where each import stands: by file and name.
        self.places: dict[tuple[str, str], tuple[Origin, str]] = {}
        self._included: set[tuple[str, str | None]] = set()

    def lines(self, path: Source, rename: str | None = None) -> Iterator[tuple[str, Origin]]:
        """Yield the composed lines of a file with the origin of each."""
        name = display(path)
        for number, line in enumerate(read(path).splitlines(), first_line(path)):
            found = _IMPORT.match(line)
            if found:
                where = f"{name}:{number}", line
                yield from self._import(found["path"], found["name"], path, where)
                continue
            renamed = re.sub(r"\bbuf(?=_|\b)", rename, line) if rename else line
            yield self._parameter(renamed), f"{name}:{number}"

    def _import(
        self, path: str, name: str | None, importer: Source, where: tuple[Origin, str]
    ) -> Iterator[tuple[str, Origin]]:
        chosen = path
        if name is not None:
            self.modules[name] = path
        if name is not None and name in self.choices:
            chosen = str(self.choices[name])
            self._take(name, path, chosen)
        # An operand that shares the binding of another has no file of its own.
        if name is not None and chosen.startswith("="):
            self.merged[name] = chosen[1:]
            return
        # Like an include guard: WGSL has no second definitions.
        if (chosen, name) in self._included:
            return
        self._included.add((chosen, name))
        file = find_import(importer, chosen)
        try:
            read(file)
        except ShaderError as error:
            raise _unread(error, importer, chosen, where) from None
        self.places[display(file), name or "buf"] = where
        yield from self.lines(file, name)

    def _parameter(self, line: str) -> str:
        found = _PARAMETER.match(line)
        if not found:
            return line
        name = found["name"]
        if name in self.choices:
            value = _wgsl(name, self.choices[name], found["type"] or "")
            self._take(name, "", value)
            line = f"{found['head']}{value};{line[found.end() :]}"
        self.constants[name] = line[len(found["head"]) : line.index(";")].strip()
        return line

    def _take(self, name: str, default: str, value: str) -> None:
        self.used.add(name)
        if value != default:
            self.taken.append(f"{name}={value.rpartition('/')[2]}")


def _unread(
    error: ShaderError, importer: Source, path: str, where: tuple[Origin, str]
) -> ShaderError:
    """Return an error about an import that cannot be read, at its line."""
    (origin, line), other = where, suggest_path(path)
    hint = f"; there is {other}" if other else ""
    gutter = f"{origin.rpartition(':')[2]} │ "
    caret = " " * (len(gutter) + max(line.find(path), 0)) + "^"
    return ShaderError(f"{stem(importer)}: {origin}: {error}{hint}\n{gutter}{line}\n{caret}")


def _wgsl(name: str, value: Choice, declared: str) -> str:
    """Format a value as WGSL, a number in the type that the shader declares."""
    if isinstance(value, str):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    # Custom ops may not be type-checked.
    if not isinstance(value, int | float) or not math.isfinite(value):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ShaderError(f"choices: {name} is {value}, needs a finite number")
    if declared in ("f32", "f16"):
        return str(float(value))
    # bool is a subclass of int, so it comes first.
    if isinstance(value, bool) or declared == "bool":
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value}i" if declared == "i32" else f"{value}u"
    return str(value)


def unroll(
    lines: Sequence[tuple[str, Origin]], constants: Mapping[str, str]
) -> list[tuple[str, Origin]]:
    """Repeat the body of every loop under ``// @unroll``, inner loops too."""
    out: list[tuple[str, Origin]] = []
    position = 0
    while position < len(lines):
        line, origin = lines[position]
        if line.strip() != "// @unroll":
            out.append((line, origin))
            position += 1
            continue
        loop, end = _loop(lines, position + 1)
        low, high = (_literal(loop[key], constants, origin) for key in ("low", "high"))
        # Inner loops first: their bounds do not depend on the outer counter.
        body = unroll(lines[position + 2 : end], constants)
        suffix = "u" if loop["high"].endswith("u") or loop["high"] in constants else ""
        for value in range(low, high):
            pattern, text = rf"\b{loop['name']}\b", f"{value}{suffix}"
            out.append((loop["indent"] + "{", origin))
            out += [(re.sub(pattern, text, inner), where) for inner, where in body]
            out.append((loop["indent"] + "}", origin))
        position = end + 1
    return out


def _loop(lines: Sequence[tuple[str, Origin]], start: int) -> tuple[re.Match[str], int]:
    head, origin = lines[start] if start < len(lines) else ("", lines[start - 1][1])
    found = _LOOP.match(head)
    if not found:
        raise ShaderError(f"{origin}: @unroll is above {head.strip()!r}, needs a counted for")
    closing = found["indent"] + "}"
    for end in range(start + 1, len(lines)):
        if lines[end][0].rstrip() == closing:
            return found, end
    raise ShaderError(f"{origin}: the loop under @unroll has no closing brace at its indentation")


def _literal(text: str, constants: Mapping[str, str], origin: Origin) -> int:
    value = constants.get(text, text).removesuffix("u")
    if not value.isdigit():
        raise ShaderError(f"{origin}: @unroll needs literal bounds, {text} is {value}")
    return int(value)


def require_values(lines: Sequence[tuple[str, Origin]]) -> None:
    """Refuse variables without a value inside loops, where they keep that of the iteration before.

    WGSL has them zero in each iteration; naga 29 does not write that (gfx-rs/wgpu#9489).

    Raises
    ------
    ShaderError
        There is one; its file and line, and what to write.
    """
    depth = 0
    loops: list[int] = []
    for line, origin in lines:
        code = line.partition("//")[0]
        found = _NO_VALUE.match(code)
        if found and loops:
            name, kind = found["name"], found["type"].strip()
            raise ShaderError(
                f"{origin}: var {name} has no value in a loop, some compilers keep that of the "
                f"iteration before; write var {name} = {kind}();"
            )
        if _LOOP_HEAD.match(code):
            loops.append(depth)
        depth += code.count("{") - code.count("}")
        while loops and depth <= loops[-1]:
            loops.pop()


def rename_merged(
    lines: Sequence[tuple[str, Origin]], bindings: Mapping[str, str]
) -> list[tuple[str, Origin]]:
    """Rename calls of an import's functions to those of the operand whose binding it shares."""
    if not bindings:
        return list(lines)
    pattern = re.compile(rf"\b(?P<name>{'|'.join(bindings)})_(?P<rest>(?:load|gather)\w*)\b")

    def replace(found: re.Match[str]) -> str:
        return f"{bindings[found['name']]}_{found['rest']}"

    return [(pattern.sub(replace, line), origin) for line, origin in lines]
