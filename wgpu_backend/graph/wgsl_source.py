"""The WGSL sources of ops: files of the package, files elsewhere, and text in Python.

A name such as ``ops/elementwise/silu`` is the file ``shaders/ops/elementwise/silu.wgsl``, or the
function ``apply_silu`` of another file in that folder: ops value by value share a file, one block
of lines each. Only that block is read, its function then called ``apply``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

from wgpu_backend.errors import ShaderError

_APPLY = re.compile(r"^fn apply_(\w+)\(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Inline:
    """WGSL written next to its op.

    Parameters
    ----------
    name : str
        What messages call it: errors say ``name:line``.
    text : str
        The WGSL.
    """

    name: str
    text: str


# A name below `shaders/` without suffix, the path of a file elsewhere, or text.
Source = str | Path | Inline


def read(source: Source) -> str:
    """Return the WGSL of a source.

    Raises
    ------
    ShaderError
        The file is missing or is no text.
    """
    try:
        if isinstance(source, Inline):
            return source.text
        if isinstance(source, Path):
            return source.read_text(encoding="utf-8")
        return _find(source).text
    except OSError as error:
        raise ShaderError(f"{display(source)}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ShaderError(f"{display(source)}: {error}") from None


class _PackageText(NamedTuple):
    """WGSL of the package.

    Parameters
    ----------
    file : str
        Its file, by the name below ``shaders/`` without suffix.
    first_line : int
        Line of the file where the text begins, counted from 1.
    text : str
        The WGSL.
    """

    file: str
    first_line: int
    text: str


@lru_cache(maxsize=512)
def _find(path: str) -> _PackageText:
    """Return a file of the package, or the block of an op in a file of several.

    Raises
    ------
    OSError
        There is neither.
    """
    folder, _, name = path.rpartition("/")
    try:
        return _PackageText(path, 1, _read_file(path))
    except FileNotFoundError:
        if name not in _blocks(folder):
            raise
    return _blocks(folder)[name]


def _read_file(path: str) -> str:
    return files("wgpu_backend.shaders").joinpath(f"{path}.wgsl").read_text(encoding="utf-8")


@cache
def _blocks(folder: str) -> dict[str, _PackageText]:
    """Return the blocks of a folder's files that have ``fn apply_NAME``, by NAME."""
    found: dict[str, _PackageText] = {}
    place = files("wgpu_backend.shaders")
    # Some versions of Python refuse to join an empty name, that of the folder itself.
    place = place.joinpath(folder) if folder else place
    if not place.is_dir():
        return found
    for entry in place.iterdir():
        if not entry.name.endswith(".wgsl"):
            continue
        line, file = 1, f"{folder}/{entry.name.removesuffix('.wgsl')}"
        # Blocks are separated by blank lines, so none may stand inside a block.
        for block in entry.read_text(encoding="utf-8").split("\n\n"):
            if function := _APPLY.search(block):
                text = _APPLY.sub("fn apply(", block).rstrip("\n") + "\n"
                found[function[1]] = _PackageText(file, line, text)
            line += block.count("\n") + 2
    return found


def first_line(source: Source) -> int:
    """Return the line of its file where a source begins: not 1 for an op that shares a file."""
    return _find(source).first_line if isinstance(source, str) else 1


def display(source: Source) -> str:
    """Return the name of a source for messages: a path, or the name of a text."""
    if isinstance(source, Inline):
        return source.name
    if isinstance(source, Path):
        return str(source)
    try:
        return f"shaders/{_find(source).file}.wgsl"
    except (OSError, UnicodeDecodeError):
        return f"shaders/{source}.wgsl"


def suggest_path(path: str) -> str:
    """Return the path of the package that is most like a wrong one, or an empty text."""
    folder, _, name = path.rpartition("/")
    stems = {other.rpartition("/")[2]: other for other in paths()}
    near = {o.rpartition("/")[2]: o for o in paths() if o.rpartition("/")[0] == folder}
    # The same name anywhere first, then the same folder: a longer name elsewhere may be more alike.
    for those in ({name: stems[name]} if name in stems else {}, near, stems):
        if found := get_close_matches(name, those, 1):
            return those[found[0]]
    return ""


@cache
def paths() -> list[str]:
    """Return every source below ``shaders/``, as imports name it; a shared file by its ops."""
    return sorted(_below(files("wgpu_backend.shaders"), ""))


def _below(folder: Traversable, prefix: str) -> Iterator[str]:
    blocks = _blocks(prefix.rstrip("/")) if prefix.startswith("ops/") else {}
    shared = {block.file for block in blocks.values()}
    yield from (prefix + name for name in blocks)
    for entry in folder.iterdir():
        path = prefix + entry.name.removesuffix(".wgsl")
        if entry.is_dir():
            yield from _below(entry, f"{path}/")
        elif entry.name.endswith(".wgsl") and path not in shared:
            yield path


def alternatives(path: str) -> list[str]:
    """List the files that can replace a named import: same folder, same functions."""
    if path not in paths():
        return []
    folder, wanted = path.rpartition("/")[0], _import_functions(path)
    siblings = (other for other in paths() if other.rpartition("/")[0] == folder)
    return [
        other
        for other in siblings
        if other != path and wanted and wanted <= _import_functions(other)
    ]


def _import_functions(path: str) -> set[str]:
    """Return the functions of a file that get the name of the import."""
    return set(re.findall(r"^fn (buf_\w+)\(", _find(path).text, re.MULTILINE))


@cache
def definitions() -> Mapping[str, str]:
    """Map each function of the package's ``lib/`` to its file, as an import names it."""
    found: dict[str, str] = {}
    for path in (path for path in paths() if path.startswith("lib/")):
        for function in re.findall(r"^fn (\w+)\(", _find(path).text, re.MULTILINE):
            found.setdefault(function, path)
    return found


def stem(source: Source) -> str:
    """Return the short name of a source, for labels."""
    if isinstance(source, Inline):
        return source.name
    if isinstance(source, Path):
        return source.stem
    if source.startswith("ops/"):
        return source.rpartition("/")[2]
    return source.removeprefix("kernels/")


def find_import(importer: Source, path: str) -> Source:
    """Find the file that `path` means: next to the importing file if there, else the package's."""
    if isinstance(importer, Path):
        local = importer.parent / f"{path}.wgsl"
        if local.exists():
            return local
    return path
