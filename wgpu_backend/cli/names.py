"""Files on the command line: models by path or name, and output files."""

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
from wgpu_backend.cli.failures import UsageError, brief, describe_error, show_as
from wgpu_backend.errors import GGUFError
from wgpu_backend.files.gguf.file_bytes import FileBytes

STORY = "story"
# Files of the models that come with the package, by name.
BUNDLED = {
    name: Path(str(files("wgpu_backend"))) / "bundled" / f"{name}.gguf" for name in (STORY, "eyes")
}
# A path or a model's name: `llama3`, `qwen2.5:7b`, `hf.co/x/y`. One word without punctuation of a
# sentence, so that "Why?" and "Fin." are prompts; "hello" might be a model as well.
_NAME = re.compile(r"[\w.~/\\][\w.:/\\@+~-]*(?<![.:])", re.ASCII)
# Shorter names match too many files by chance.
_LEAST_LETTERS = 3


class NoSuchModel(UsageError):
    """The model does not exist.

    Parameters
    ----------
    name : str
        The name as typed.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def split_model_and_prompt(first: str | None, second: str | None) -> tuple[str, str | None]:
    """Return model and prompt; a single text that cannot name a model is a prompt.

    Raises
    ------
    UsageError
        A single word may name a model, but there is no such file.
    """
    if first is None:
        return STORY, None
    # Of two words the first is the model, even if it does not exist: that is reported later.
    if second is not None or _is_model(first):
        return first, second
    if _NAME.fullmatch(first):
        hint = f"; to give the word as a prompt: {PROGRAM} run {STORY} {shlex.quote(first)}"
        raise NoSuchModel(first, _describe_missing(first) + hint)
    return STORY, first


def _is_model(name: str) -> bool:
    """Return whether a word is a bundled model, a stored model or a file."""
    return (
        name in BUNDLED or name.endswith(".gguf") or exists(name) or find_in_store(name) is not None
    )


def exists(name: str) -> bool:
    """Return whether a word is an existing path."""
    try:
        return bool(name) and Path(name).exists()
    except (OSError, ValueError):
        # A prompt may be too long for a path, or contain a NUL.
        return False


def find_model(name: str) -> Path:
    """Return the file or folder of a model, by its path or its name in the store.

    Raises
    ------
    UsageError
        It does not exist, is not a file or a checkpoint, or is not readable.
    """
    if not name:
        raise UsageError(f"MODEL is empty, needs a GGUF file or `{STORY}`")
    # Checkpoints are folders, which `require_file` would refuse.
    if exists(str(Path(name, "config.json"))):
        return Path(name)
    path = BUNDLED.get(name) or Path(name)
    if exists(name) and path.is_dir():
        raise UsageError(
            f"{name}: a folder without config.json; MODEL is a GGUF file, a Hugging Face folder "
            f"or the name of a model"
        )
    try:
        return require_file(path)
    except FileNotFoundError:
        found = find_in_store(name)
    if found is None:
        raise NoSuchModel(name, _describe_missing(name))
    # Errors of the file then name the model, and not the path of a blob.
    show_as(found, name)
    return found


def find_in_store(name: str) -> Path | None:
    """Return the file of a model in the store; None if the store does not have it."""
    from wgpu_backend.cli.store import find_stored

    found = find_stored(name)
    return None if found is None else found.path


def require_file(path: Path, suffix: str = "") -> Path:
    """Return a path that is a readable regular file.

    Parameters
    ----------
    suffix : str
        Required suffix of the name.

    Raises
    ------
    UsageError
        It is not a regular file, is not readable, or has another suffix.
    FileNotFoundError
        The file does not exist.
    """
    try:
        path.stat()
        # Opening finds missing permissions and folders as later commands would, with their
        # messages.
        FileBytes(path).close()
    except FileNotFoundError:
        raise
    except (GGUFError, OSError) as error:
        raise UsageError(describe_error(error)) from None
    except ValueError as error:
        # A NUL in the name. GGUFError is a ValueError too, so this clause comes last.
        raise UsageError(f"{str(path)!r}: {error}") from None
    if not path.name.endswith(suffix):
        raise UsageError(f"{path}: the name ends in {path.suffix!r}, needs {suffix}")
    return path


def _describe_missing(name: str) -> str:
    """Return the message for a missing model, with similar names."""
    parent = Path(name).parent
    folder = parent if parent.is_dir() else Path()
    files = [str(folder / file) for file in find_similar(name, folder)]
    meant = " or ".join(files or _find_similar_in_store(name))
    if meant:
        return f"{name}: no such file or model; did you mean {meant}?"
    if _is_path(name):
        return f"{name}: no such file; MODEL is a GGUF file, a folder, a model's name or `{STORY}`"
    return (
        f"{name}: no such file, and no model of that name in the store; "
        f"`{PROGRAM} pull {shlex.quote(name)}` downloads it, `{PROGRAM} list` shows what is there"
    )


def _is_path(name: str) -> bool:
    """Return whether a word can only be a path, and not a name in a registry."""
    from wgpu_backend.errors import StoreError
    from wgpu_backend.files.store.names import ModelName

    if name.endswith(".gguf") or name.startswith((".", "~", "/")):
        return True
    try:
        ModelName.parse(name)
    except StoreError:
        return True
    return False


def _find_similar_in_store(name: str) -> list[str]:
    """Return at most three names in the store that resemble a name."""
    from wgpu_backend.cli.store import open_store

    names = [str(entry.name) for entry in open_store().entries()]
    # Users leave the default tag out, so names are compared without it.
    short = {each.removesuffix(":latest"): each for each in names}
    return get_close_matches(name.removesuffix(":latest"), short, cutoff=0.75)


def find_similar(name: str, folder: Path) -> list[str]:
    """Return GGUF files in a folder whose names contain or resemble the last part of a name.

    Parameters
    ----------
    name : str
        The name as typed: a path, or a model's name (``qwen2.5:7b``).

    Returns
    -------
    list of str
        At most three file names.
    """
    try:
        files = sorted(path.name for path in folder.iterdir() if path.suffix == ".gguf")
    except OSError:
        # The folder is not readable; suggestions are a courtesy.
        return []
    typed = _simplify(name)
    plain = {file: _simplify(file) for file in files}
    containing = [file for file in files if len(typed) >= _LEAST_LETTERS and typed in plain[file]]
    # 0.75 admits a wrong or a swapped letter in names of usual length.
    alike = get_close_matches(typed, plain.values(), cutoff=0.75)
    return (containing or [file for file in files if plain[file] in alike])[:3]


def _simplify(name: str) -> str:
    """Return the letters and digits of the last part of a path, in lower case."""
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1].removesuffix(".gguf")
    return re.sub(r"[^a-z0-9]", "", last.lower())


def save(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a result to a file; remove the incomplete file after an error.

    Parameters
    ----------
    write : callable
        Called with the open file.

    Raises
    ------
    OSError
        The file cannot be written. The error names the file, which a failed write does not.
    """
    try:
        with path.open("wb") as file:
            write(file)
    except OSError as error:
        if path.is_file():
            # A device or a pipe must stay.
            path.unlink()
        # A failed write, of a full disk for example, has no file name.
        raise OSError(error.errno, error.strerror, str(path)) from error


def require_writable(path: Path) -> Path:
    """Check that an output file can be written, before the work starts.

    Raises
    ------
    UsageError
        Its folder does not exist, or it cannot be written.
    """
    try:
        if not path.parent.is_dir():
            raise UsageError(f"{path}: no such folder {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise UsageError(f"{path}: not writable")
    except OSError as error:
        raise UsageError(describe_error(error)) from None
    except ValueError:
        raise UsageError(f"{brief(str(path))}: not a path, needs a file") from None
    return path
