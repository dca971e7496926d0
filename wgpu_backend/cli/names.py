"""Files that a user names: the model, by its path or its name, and where results go."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO

from wgpu_backend.cli.console import PROGRAM
from wgpu_backend.cli.failures import UsageError, brief, message_of, show_as
from wgpu_backend.errors import GGUFError
from wgpu_backend.files.gguf.file_bytes import FileBytes

BUNDLED = Path(str(files("wgpu_backend"))) / "bundled" / "story.gguf"
STORY = "story"
# A path, or a model as libraries name them: `llama3`, `qwen2.5:7b`, `hf.co/x/y`. One word without
# a sentence's marks, so that "Why?" and "Fin." are prompts; "hello" might be a model as well.
_NAME = re.compile(r"[\w.~/\\][\w.:/\\@+~-]*(?<![.:])", re.ASCII)
_SHUFFLING = 3  # characters that say something of a name


class NoSuchModel(UsageError):
    """A model that is not there.

    Parameters
    ----------
    name : str
        As it was typed.
    message : str
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def sort_out(first: str | None, second: str | None) -> tuple[str, str | None]:
    """Model and prompt out of one or two words; a lone text that can name no model is a prompt.

    Raises
    ------
    UsageError
        A lone word may name a model, and there is no such file.
    """
    if first is None:
        return STORY, None
    if second is not None or _names_a_file(first):
        return first, second
    if _NAME.fullmatch(first):
        hint = f"; to give the word as a prompt: {PROGRAM} run {STORY} {shlex.quote(first)}"
        raise NoSuchModel(first, _missing(first) + hint)
    return STORY, first


def _names_a_file(name: str) -> bool:
    """Whether a word is the bundled model, a file, or what can only be meant as one."""
    return name == STORY or name.endswith(".gguf") or exists(name) or in_store(name) is not None


def exists(name: str) -> bool:
    """Whether a word is the path of something that is there."""
    try:
        return bool(name) and Path(name).exists()
    except (OSError, ValueError):  # too long for a path, or with a NUL: a prompt
        return False


def model_path(name: str) -> Path:
    """File or folder of a model that a user named, by its path or as the store has it.

    Raises
    ------
    UsageError
        It is not there, no file nor a model's folder, or not readable.
    """
    if not name:
        raise UsageError(f"MODEL is empty, needs a GGUF file or `{STORY}`")
    if exists(str(Path(name, "config.json"))):
        return Path(name)
    path = BUNDLED if name == STORY else Path(name)
    if exists(name) and path.is_dir():
        raise UsageError(
            f"{name}: a folder without config.json; MODEL is a GGUF file, a Hugging Face folder "
            f"or the name of a model"
        )
    try:
        return regular(path)
    except FileNotFoundError:
        found = in_store(name)
    if found is None:
        raise NoSuchModel(name, _missing(name))
    show_as(found, name)
    return found


def in_store(name: str) -> Path | None:
    """File of a model of the store; None where the store has none of that name."""
    from wgpu_backend.cli.library import stored

    found = stored(name)
    return None if found is None else found.path


def regular(path: Path, suffix: str = "") -> Path:
    """File that is one, and may be read.

    Parameters
    ----------
    path : Path
    suffix : str
        That its name has to end in.

    Raises
    ------
    UsageError
        It is a folder, a pipe or the like, may not be read, or has another suffix.
    FileNotFoundError
        It is not there.
    """
    try:
        path.stat()
        FileBytes(path).close()
    except FileNotFoundError:
        raise
    except (GGUFError, OSError) as error:
        raise UsageError(message_of(error)) from None
    except ValueError as error:  # a NUL in the name; GGUFError is a ValueError too
        raise UsageError(f"{str(path)!r}: {error}") from None
    if not path.name.endswith(suffix):
        raise UsageError(f"{path}: the name ends in {path.suffix!r}, needs {suffix}")
    return path


def _missing(name: str) -> str:
    """What to say of a file that is not there, with those that may be meant."""
    parent = Path(name).parent
    folder = parent if parent.is_dir() else Path()
    files = [str(folder / file) for file in near(name, folder)]
    meant = " or ".join(files or _near_in_store(name))
    if meant:
        return f"{name}: no such file or model; did you mean {meant}?"
    if _is_path(name):
        return f"{name}: no such file; MODEL is a GGUF file, a folder, a model's name or `{STORY}`"
    return (
        f"{name}: no such file, and no model of that name in the store; "
        f"`{PROGRAM} pull {shlex.quote(name)}` downloads it, `{PROGRAM} list` shows what is there"
    )


def _is_path(name: str) -> bool:
    """Whether a word can only be a path: registries have no such names."""
    from wgpu_backend.errors import StoreError
    from wgpu_backend.files.store.names import ModelName

    if name.endswith(".gguf") or name.startswith((".", "~", "/")):
        return True
    try:
        ModelName.parse(name)
    except StoreError:
        return True
    return False


def _near_in_store(name: str) -> list[str]:
    """Names in the store that a mistyped one resembles, at most three."""
    from wgpu_backend.cli.library import open_store

    names = [str(entry.name) for entry in open_store().entries()]
    short = {each.removesuffix(":latest"): each for each in names}
    return get_close_matches(name.removesuffix(":latest"), short, cutoff=0.75)


def near(name: str, folder: Path) -> list[str]:
    """GGUF files in a folder whose names hold, or resemble, the last part of a name.

    Parameters
    ----------
    name : str
        As it was typed: a path, or a model as a library names it (``qwen2.5:7b``).
    folder : Path

    Returns
    -------
    list of str
        Names of three files at most.
    """
    try:
        files = sorted(path.name for path in folder.iterdir() if path.suffix == ".gguf")
    except OSError:  # a folder that may not be read
        return []
    wanted = _bare(name)
    plain = {file: _bare(file) for file in files}
    holding = [file for file in files if len(wanted) >= _SHUFFLING and wanted in plain[file]]
    alike = get_close_matches(wanted, plain.values(), cutoff=0.75)
    return (holding or [file for file in files if plain[file] in alike])[:3]


def _bare(name: str) -> str:
    """Letters and digits of the last part of a path, in lower case."""
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1].removesuffix(".gguf")
    return re.sub(r"[^a-z0-9]", "", last.lower())


def save(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a result to a file, and take away what there is of it where the disk is full.

    Parameters
    ----------
    path : Path
    write : callable
        Given the open file.

    Raises
    ------
    OSError
        It cannot be written; names the file, which a failed write alone does not.
    """
    try:
        with path.open("wb") as file:
            write(file)
    except OSError as error:
        if path.is_file():  # and no device or pipe
            path.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error


def writable(path: Path) -> Path:
    """File that a result goes to, checked before the work that makes it.

    Raises
    ------
    UsageError
        Its folder is not there, or it cannot be written.
    """
    try:
        if not path.parent.is_dir():
            raise UsageError(f"{path}: no such folder {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise UsageError(f"{path}: may not be written")
    except OSError as error:
        raise UsageError(message_of(error)) from None
    except ValueError:
        raise UsageError(f"{brief(str(path))}: no path, needs a file") from None
    return path
