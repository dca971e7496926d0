"""Where WGSL comes from: a file of the package, a file elsewhere, or text an op brings along."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path

from wgpu_backend.errors import ShaderError


@dataclass(frozen=True, slots=True)
class Inline:
    """WGSL written where its op is.

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
    """WGSL of a source.

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
    """What messages call a source: a path, or the name of a text."""
    if isinstance(source, Inline):
        return source.name
    return str(source) if isinstance(source, Path) else f"shaders/{source}.wgsl"


def alike(path: str) -> str:
    """Name of a file of the package that is much like a wrong one, or nothing."""
    folder = path.rpartition("/")[0]
    home = files("wgpu_backend.shaders").joinpath(folder)
    names = [f"{folder}/{f.name}".strip("/") for f in home.iterdir()] if home.is_dir() else []
    found = get_close_matches(f"{path}.wgsl", names, 1)
    return found[0].removesuffix(".wgsl") if found else ""


@cache
def definitions() -> Mapping[str, str]:
    """Functions of the package's ``lib/``, with the file that has them, as an import names it."""
    home = files("wgpu_backend.shaders").joinpath("lib")
    found: dict[str, str] = {}
    for name in sorted(file.name for file in home.iterdir()):
        path = f"lib/{name.removesuffix('.wgsl')}"
        for function in re.findall(r"^fn (\w+)\(", _package_text(path), re.MULTILINE):
            found.setdefault(function, path)
    return found


def stem(source: Source) -> str:
    """Short name of a source, for labels."""
    if isinstance(source, Inline):
        return source.name
    return source.stem if isinstance(source, Path) else source.removeprefix("kernels/")


def beside(importer: Source, path: str) -> Source:
    """File meant by `path`: next to the importing file where there is one, else the package's."""
    if isinstance(importer, Path):
        local = importer.parent / f"{path}.wgsl"
        if local.exists():
            return local
    return path
