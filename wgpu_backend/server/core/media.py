"""Pictures and sounds in requests: base64 and data: URLs as bytes, and content with parts.

URLs of the network are refused, unless the operator allows them: a server that fetches what a
client names can be made to read addresses that only the server reaches.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from wgpu_backend.engine.media import Part
from wgpu_backend.server.core.model_pool import Loaded
from wgpu_backend.server.core.remote_files import RemoteFile
from wgpu_backend.server.core.request import CompletionRequest, RequestError
from wgpu_backend.server.core.request_log import get_record

MessageContent = str | list[dict[str, Any]]
"""Content of a message: a text, or parts where it has a picture or a sound."""
Message = dict[str, Any]
_URL = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")
# Parts whose data may be fetched.
_REMOTE = ("image", "video")
# First bytes of sound files: WAV, FLAC, MP3 with a tag, Ogg.
_SOUNDS = (b"RIFF", b"fLaC", b"ID3", b"OggS", b"\xff\xfb", b"\xff\xf3")


def decode_base64(where: str, text: object) -> bytes:
    """Decode base64, or a data: URL in base64.

    Raises
    ------
    RequestError
        It is neither, or has no bytes.
    """
    if not isinstance(text, str):
        raise RequestError(400, f"{where}: {str(text)[:40]!r}, needs a string in base64")
    if _is_url(text):
        raise RequestError(
            400,
            f"{where}: {text[:60]!r} is not fetched by this server; send the data itself, as "
            "data:image/png;base64,…",
        )
    encoded = text
    if text.startswith("data:"):
        head, _, encoded = text.partition(",")
        if not head.endswith(";base64"):
            raise RequestError(400, f"{where}: {head[:60]!r}, needs data:TYPE;base64,…")
    try:
        found = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(400, f"{where}: is not base64") from None
    if not found:
        raise RequestError(400, f"{where}: has no bytes, needs a picture or a sound")
    return found


def _is_url(text: str) -> bool:
    """Return whether a text is a URL of the network; base64 has no colon."""
    return _URL.match(text) is not None


def make_part(where: str, kind: str, text: object) -> dict[str, Any]:
    """Return a part of a message with a picture or a sound; raises like `decode_base64`.

    Where the operator allows it, a picture may be a URL, which `fetch_remote_parts` fetches later.

    Parameters
    ----------
    kind : str
        ``image`` or ``audio``.
    """
    allowed = get_record().remote is not None and kind == "image"
    if allowed and isinstance(text, str) and _is_url(text):
        return {"type": kind, kind: RemoteFile(where, text)}
    return {"type": kind, kind: decode_base64(where, text)}


def make_video(where: str, source: object, fps: object = None) -> dict[str, Any]:
    """Return a part of a message with a video; raises like `decode_base64`.

    Parameters
    ----------
    source : str or list of str
        An animation; or pictures, as a list or as vLLM's ``data:video/jpeg;base64,…,…``. Each may
        be a URL like those of `make_part`.
    fps : object
        Frames in a second; None for the default.
    """
    allowed = get_record().remote is not None

    def read(each: object) -> bytes | RemoteFile:
        if allowed and isinstance(each, str) and _is_url(each):
            return RemoteFile(where, each)
        return decode_base64(where, each)

    if isinstance(source, str) and source.startswith("data:"):
        head, *pieces = source.split(",")
        if len(pieces) > 1 or head == "data:video/jpeg;base64":
            source = [f"{head},{piece}" for piece in pieces]
    listed = isinstance(source, list)
    found = [read(each) for each in cast("list[object]", source)] if listed else read(source)
    return {"type": "video", "video": found, **({} if fps is None else {"fps": fps})}


async def fetch_remote_parts(loaded: Loaded, request: CompletionRequest) -> CompletionRequest:
    """Return a request whose pictures and videos at URLs are fetched, unless its model takes none.

    Raises
    ------
    RequestError
        One cannot be fetched.
    """
    reader, files = get_record().remote, [*_list_remote(request.messages or ())]
    if not files or reader is None or "image" not in loaded.model.takes:
        return request
    # A URL that is named twice is fetched once.
    once = [*dict.fromkeys(files)]
    found = dict(zip(once, await reader.fetch_all(once), strict=True))
    messages = [_replace_remote(message, found) for message in request.messages or ()]
    return replace(request, messages=messages)


def _list_parts(message: Mapping[str, Any]) -> list[object]:
    content = message.get("content")
    return cast("list[object]", content) if isinstance(content, list) else []


def _list_remote(messages: Sequence[Mapping[str, Any]]) -> list[RemoteFile]:
    found: list[object] = []
    for part in (part for message in messages for part in _list_parts(message)):
        for kind in _REMOTE if isinstance(part, dict) else ():
            source = cast("Message", part).get(kind)
            found += cast("list[object]", source) if isinstance(source, list) else [source]
    return [source for source in found if isinstance(source, RemoteFile)]


def _replace_remote(
    message: Mapping[str, Any], found: Mapping[RemoteFile, bytes]
) -> Mapping[str, Any]:
    if not _list_remote([message]):
        return message

    def replace_one(source: object) -> object:
        if isinstance(source, list):
            return [replace_one(each) for each in cast("list[object]", source)]
        return found[source] if isinstance(source, RemoteFile) else source

    made = [
        {key: replace_one(value) if key in _REMOTE else value for key, value in part.items()}
        for part in cast("list[Message]", _list_parts(message))
    ]
    return {**message, "content": made}


def guess_part(where: str, text: object) -> Part:
    """Return a picture or a sound, whose kind its first bytes name; raises like `decode_base64`."""
    data = decode_base64(where, text)
    # RIFF is a container of WebP pictures, too.
    is_sound = data.startswith(_SOUNDS) and data[8:12] != b"WEBP"
    return Part("audio" if is_sound else "image", data)


def join_parts(parts: Sequence[str | dict[str, Any]]) -> MessageContent:
    """Return the content of a message: texts joined by line breaks, unless there are other parts.

    Between parts the texts are joined as well, so that a template writes as many lines as for text.
    """
    if all(isinstance(part, str) for part in parts):
        return "\n".join(str(part) for part in parts)
    found: list[dict[str, Any]] = []
    for part in parts:
        if not isinstance(part, str):
            found.append(part)
        elif found and found[-1]["type"] == "text":
            found[-1]["text"] += f"\n{part}"
        else:
            found.append({"type": "text", "text": part})
    return found
