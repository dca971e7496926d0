"""Sources of WGSL: a file of the package, a file elsewhere, or a text that an op brings along."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from wgpu_backend.errors import ShaderError


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
        return _package_text(source)
    except OSError as error:
        raise ShaderError(f"{display(source)}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ShaderError(f"{display(source)}: {error}") from None


@lru_cache(maxsize=512)
def _package_text(path: str) -> str:
    return files("wgpu_backend.shaders").joinpath(f"{path}.wgsl").read_text(encoding="utf-8")


def display(source: Source) -> str:
    """Return the name of a source for messages: a path, or the name of a text."""
    if isinstance(source, Inline):
        return source.name
    return str(source) if isinstance(source, Path) else f"shaders/{source}.wgsl"


def alike(path: str) -> str:
    """Return the path of the package that is most like a wrong one, or an empty text."""
    folder, _, name = path.rpartition("/")
    stems = {other.rpartition("/")[2]: other for other in _paths()}
    near = {o.rpartition("/")[2]: o for o in _paths() if o.rpartition("/")[0] == folder}
    # What has the very name, then what is beside it: a longer name elsewhere may be more alike.
    for those in ({name: stems[name]} if name in stems else {}, near, stems):
        if found := get_close_matches(name, those, 1):
            return those[found[0]]
    return ""


@cache
def _paths() -> list[str]:
    """List every file below ``shaders/``, as imports name it."""
    return sorted(_below(files("wgpu_backend.shaders"), ""))


def _below(folder: Traversable, prefix: str) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _below(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".wgsl"):
            yield prefix + entry.name.removesuffix(".wgsl")


def alternatives(path: str) -> list[str]:
    """List the files that can replace a named import: same folder, same functions."""
    if path not in _paths():
        return []
    folder, wanted = path.rpartition("/")[0], _imported(path)
    beside = (other for other in _paths() if other.rpartition("/")[0] == folder)
    return [other for other in beside if other != path and wanted and wanted <= _imported(other)]


def _imported(path: str) -> set[str]:
    """Return the functions of a file that get the name of the import."""
    return set(re.findall(r"^fn (buf_\w+)\(", _package_text(path), re.MULTILINE))


@cache
def definitions() -> Mapping[str, str]:
    """Map each function of the package's ``lib/`` to its file, as an import names it."""
    found: dict[str, str] = {}
    for path in (path for path in _paths() if path.startswith("lib/")):
        for function in re.findall(r"^fn (\w+)\(", _package_text(path), re.MULTILINE):
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


def beside(importer: Source, path: str) -> Source:
    """Find the file that `path` means: next to the importing file if there, else the package's."""
    if isinstance(importer, Path):
        local = importer.parent / f"{path}.wgsl"
        if local.exists():
            return local
    return path
