"""Files of Hugging Face's Hub for `Llama.from_pretrained`, brought by huggingface_hub."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from os import PathLike
from pathlib import Path
from typing import Any, cast

import huggingface_hub
from huggingface_hub import errors as hub_errors

from wgpu_backend.errors import ModelError, OptionError
from wgpu_backend.files.gguf.reader import PART_NAME

_SHOWN = 30  # names of files in a message


def downloaded(
    repo_id: str,
    filename: str,
    additional_files: Iterable[str],
    local_dir: str | PathLike[str] | None,
    cache_dir: str | PathLike[str] | None,
) -> Path:
    """Bring the one file of a repository that a pattern fits, and the other parts of a split one.

    Parameters
    ----------
    repo_id : str
        ``OWNER/REPO``.
    filename : str
        A name, or a pattern such as ``*Q4_K_M.gguf`` or ``*Q8_0*-00001-of-*.gguf``.
    additional_files : iterable of str
        Patterns of files that are brought besides.
    local_dir, cache_dir : path-like or None
        Where files are put; None for huggingface_hub's cache.

    Returns
    -------
    Path
        Of the file; of a split one, the first part.

    Raises
    ------
    OptionError
        A pattern fits no file, or several.
    ModelError
        The Hub has no such repository, or cannot be reached.
    """
    download = cast("Any", huggingface_hub).hf_hub_download
    folders = {
        name: None if folder is None else Path(folder)
        for name, folder in (("local_dir", local_dir), ("cache_dir", cache_dir))
    }
    try:
        files = list(huggingface_hub.list_repo_files(repo_id))
        name = _one(repo_id, files, filename)
        others = [_one(repo_id, files, pattern) for pattern in additional_files]
        wanted = [name, *_further_parts(repo_id, files, name), *others]
        paths: list[str] = [download(repo_id=repo_id, filename=each, **folders) for each in wanted]
    except (hub_errors.HfHubHTTPError, hub_errors.HFValidationError, OSError) as error:
        told = str(error).strip().partition("\n")[0]
        raise ModelError(f"{repo_id}: {told}") from error
    return Path(paths[0])


def _one(repo_id: str, files: Sequence[str], pattern: str) -> str:
    """The file that a pattern fits; of the parts of one split file, the first."""
    found = [each for each in files if fnmatch(each, pattern)]
    parts = [PART_NAME.fullmatch(each) for each in found]
    if len({part and part.group(1, 3) for part in parts}) == 1 and all(parts):
        found = [min(found)]
    if len(found) == 1:
        return found[0]
    there = found or files
    more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
    told = f"fits {len(found)} of {len(files)} files, needs one; " + ("they" if found else "there")
    raise OptionError(f"{repo_id}: {pattern!r} {told} are {', '.join(there[:_SHOWN])}{more}")


def _further_parts(repo_id: str, files: Sequence[str], name: str) -> list[str]:
    found = PART_NAME.fullmatch(name)
    if found is None:
        return []
    names = [f"{found[1]}-{n:05}-of-{found[3]}.gguf" for n in range(1, int(found[3]) + 1)]
    missing = [posixpath.basename(each) for each in names if each not in files]
    if missing:
        raise ModelError(f"{repo_id}: has no {', '.join(missing[:9])}")
    return [each for each in names if each != name]
