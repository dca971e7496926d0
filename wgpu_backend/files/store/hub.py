"""Split GGUF files on Hugging Face, for which its registry has no manifests.

The Hub lists the files of a repository at ``/api/models/OWNER/REPO/tree/main``, with the SHA-256 of
each, and serves them at ``/OWNER/REPO/resolve/main/FILE``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote

from wgpu_backend.errors import ModelNotFound
from wgpu_backend.files.gguf.reader import PART_NAME
from wgpu_backend.files.store.names import ModelName

# The Hub's choice for `latest`.
_DEFAULT = "Q4_K_M"
# Maximum number of pages of a listing.
_PAGES = 100


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository.

    Parameters
    ----------
    path : str
        Path in the repository.
    size : int
        Number of bytes.
    sha256 : str
        Digest of its bytes; empty if the Hub does not list it.
    """

    path: str
    size: int
    sha256: str


def tree_url(name: ModelName) -> str:
    """Return the URL of a repository's list of files."""
    repository = f"{name.namespace}/{name.model}"
    return f"{name.scheme}://{name.host}/api/models/{repository}/tree/main?recursive=true"


def file_url(name: ModelName, file: HubFile) -> str:
    """Return the URL of a file of a repository."""
    path = f"{name.namespace}/{name.model}/resolve/main/{quote(file.path)}"
    return f"{name.scheme}://{name.host}/{path}"


def list_files(first: str, page: Callable[[str], tuple[bytes, str]]) -> list[HubFile]:
    """List the files of a repository.

    Parameters
    ----------
    first : str
        URL of the first page.
    page : callable
        Returns the body of a page, and the URL of the next one or "".
    """
    found: list[HubFile] = []
    url = first
    for _ in range(_PAGES):
        body, url = page(url)
        found += _files(body)
        if not url:
            break
    return found


def _files(body: bytes) -> Iterator[HubFile]:
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        return
    for each in cast("list[Any]", value if isinstance(value, list) else []):
        given = cast("dict[str, Any]", each if isinstance(each, dict) else {})
        path, size, lfs = given.get("path"), given.get("size"), given.get("lfs")
        if isinstance(path, str) and isinstance(size, int) and size > 0:
            digest = cast("dict[str, Any]", lfs).get("oid") if isinstance(lfs, dict) else ""
            known = isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)
            yield HubFile(path, size, str(digest) if known else "")


def find_parts(files: list[HubFile], name: ModelName) -> list[HubFile]:
    """Return the parts of the split file that a tag stands for, in order, or none.

    Raises
    ------
    ModelNotFound
        The repository has only some of its parts; the message names the others.
    """
    sets: dict[tuple[str, int], dict[int, HubFile]] = {}
    for file in files:
        found = PART_NAME.fullmatch(file.path)
        if found and "mmproj" not in found[1].rpartition("/")[2].lower():
            sets.setdefault((found[1], int(found[3])), {})[int(found[2])] = file
    tags = [_DEFAULT, ""] if name.tag == "latest" else [name.tag]
    for tag in tags:
        for (stem, count), parts in sorted(sets.items(), key=lambda each: (len(each[0][0]), each)):
            if _matches_tag(tag, stem):
                return _require_all(name, stem, count, parts)
    return []


def _matches_tag(tag: str, stem: str) -> bool:
    """Return whether a file, without the number of the part, matches a tag."""
    ends = re.search(rf"(^|[-._/]){re.escape(tag)}$", stem, re.IGNORECASE)
    folders = stem.lower().split("/")[:-1]
    return not tag or ends is not None or tag.lower() in folders


def _require_all(
    name: ModelName, stem: str, count: int, parts: dict[int, HubFile]
) -> list[HubFile]:
    missing = [f"{stem}-{n:05}-of-{count:05}.gguf" for n in range(1, count + 1) if n not in parts]
    if missing:
        raise ModelNotFound(f"{name}: {name.host} has no {', '.join(missing[:9])}")
    return [parts[number] for number in range(1, count + 1)]
