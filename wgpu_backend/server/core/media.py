"""Pictures and sounds in requests: base64 and data: URLs as bytes, and content with parts.

URLs of the network are refused: a server that fetches what a client names can be made to read
addresses that only the server reaches.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from wgpu_backend.engine.media import Part
from wgpu_backend.server.core.request import RequestError

MessageContent = str | list[dict[str, Any]]
"""Content of a message: a text, or parts where it has a picture or a sound."""
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
    if text[:8].lower().startswith(("http:", "https:")):
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


def make_part(where: str, kind: str, text: object) -> dict[str, Any]:
    """Return a part of a message with a picture or a sound; raises like `decode_base64`.

    Parameters
    ----------
    kind : str
        ``image`` or ``audio``.
    """
    return {"type": kind, kind: decode_base64(where, text)}


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
