"""A record of each request: ignored fields, and a line in the log."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wgpu_backend.server.core.remote_files import RemoteFiles
from wgpu_backend.server.core.request import RequestError

_LOG = logging.getLogger("wgpu_backend.server")
# The log warns once per name, up to this number: clients can make up any number of names.
_MOST_NAMES = 1000
# Names in the `Warning` header; servers and proxies limit the length of headers.
_MOST_SHOWN = 20
# Letters of a name of a client's.
_LONGEST = 60
_INDEX = re.compile(r"\[\d+\]")
# Pages and probes ask for these every few seconds, which would hide other requests in the log.
_POLLED = ("/health", "/v1/health", "/metrics", "/api/ps", "/slots", "/inspect/machine")
_PAGE = "/page/"
GONE = "the client has gone"
_BLOB = "sha256-"
# nginx's status for a client that disconnects.
_GONE_STATUS = 499


@dataclass(slots=True)
class Record:
    """The record of one request.

    Parameters
    ----------
    strict : bool
        Refuse unknown fields instead of ignoring them.
    ignored : dict of str to str
        Names of ignored fields and options, with the reason.
    prompt, made : int
        Tokens that were read, and generated.
    reason : str
        Reason of an error.
    fields : tuple of str
        Names of the body's fields.
    lags : bool
        Whether the client had not read the last piece, so that the next pieces are merged.
    names : dict of str to str
        Names to show to clients in place of names of blobs.
    private : Pattern or None
        Folders of this machine, which are removed from messages to clients.
    remote : RemoteFiles or None
        Reads pictures at URLs; None where the operator does not allow it.
    """

    strict: bool = False
    ignored: dict[str, str] = field(default_factory=dict[str, str])
    model: str = ""
    prompt: int = 0
    made: int = 0
    reason: str = ""
    fields: tuple[str, ...] = ()
    lags: bool = False
    names: dict[str, str] = field(default_factory=dict[str, str])
    private: re.Pattern[str] | None = None
    remote: RemoteFiles | None = None

    def clean(self, text: str) -> str:
        """Return a text for a client, in which paths of files are cut to the file's name."""
        text = text if self.private is None else self.private.sub(_last_name, text)
        for blob, name in self.names.items():
            text = text.replace(blob, name)
        return text

    def note_files(self, name: str, model: Path, adapters: Iterable[Path]) -> None:
        """Note the names to show for the blobs of a model and its adapters."""
        given = {**dict.fromkeys(adapters, f"adapter of {name}"), model: name}
        self.names |= {path.name: said for path, said in given.items() if _BLOB in path.name}


# Starlette copies the context into its threads, so they find the record as well.
_CURRENT: ContextVar[Record] = ContextVar("wgpu_backend_record")


def get_record() -> Record:
    """Return the record of the current request; an unused one outside of requests."""
    return _CURRENT.get(None) or Record()


def _compile_folders(folders: Iterable[Path]) -> re.Pattern[str] | None:
    """Return a pattern that matches folders in a text, inner ones first; None if there are none."""
    both = {path for folder in folders for path in (folder.absolute(), folder.resolve())}
    texts = sorted((str(path) for path in both if path.name), key=len, reverse=True)
    if not texts:
        return None
    return re.compile(f"({'|'.join(map(re.escape, texts))})([/\\\\]|(?![\\w.-]))")


def _last_name(found: re.Match[str]) -> str:
    """Return the replacement of a folder: nothing if a name follows, else the folder's name."""
    return "" if found[2] else Path(found[1]).name


def ignore(name: str, why: str) -> None:
    """Note that a field or an option is not used.

    Parameters
    ----------
    why : str
        Such as ``no such field``.

    Raises
    ------
    RequestError
        The server is strict.
    """
    record = get_record()
    name = name[:_LONGEST]
    if record.strict:
        raise RequestError(400, f"{name}: {why}")
    # One name for all items of a list.
    record.ignored[_INDEX.sub("[]", name)] = why


class Recorder:
    """Middleware that logs each request and lists ignored fields in a ``Warning`` header.

    Parameters
    ----------
    app : callable
        Of ASGI.
    strict, debug : bool
        Refuse unknown fields; also log polling requests and names of fields.
    private : iterable of Path
        Folders that are removed from errors for clients.
    remote : RemoteFiles or None
        See `Record`.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        strict: bool = False,
        debug: bool = False,
        private: Iterable[Path] = (),
        remote: RemoteFiles | None = None,
    ) -> None:
        self._app = app
        self._remote = remote
        self._private = _compile_folders(private)
        self._strict = strict
        self._debug = debug
        self._warned = set[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record, begin, status, whole = Record(self._strict), time.monotonic(), 0, False
        record.private, record.remote = self._private, self._remote

        async def send_recorded(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
                self._warn(scope, message, record.ignored)
            # A disconnect after the last piece is normal, not a cancelled request.
            elif message["type"] == "http.response.body":
                whole = not message.get("more_body", False)
            await send(message)

        async def receive_watched() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and not whole:
                record.reason = record.reason or GONE
            return message

        token = _CURRENT.set(record)
        try:
            await self._app(scope, receive_watched, send_recorded)
        finally:
            _CURRENT.reset(token)
            # An answer that was not begun has no status yet.
            if record.reason == GONE:
                status = status or _GONE_STATUS
            self._log(scope, status, record, time.monotonic() - begin)

    def _warn(self, scope: Scope, message: Message, ignored: Mapping[str, str]) -> None:
        if not ignored:
            return
        for name, why in ignored.items():
            if name not in self._warned and len(self._warned) < _MOST_NAMES:
                self._warned.add(name)
                where = f"{scope['method']} {_clean_text(scope['path'])}"
                _LOG.warning("%s: ignores %s: %s", where, _clean_text(name), why)
        names = ", ".join(_clean_name(name) for name in [*ignored][:_MOST_SHOWN])
        if len(ignored) > _MOST_SHOWN:
            names += f" and {len(ignored) - _MOST_SHOWN} more"
        # 299 is the code of warnings that are none of the others (RFC 7234, 5.5.7).
        MutableHeaders(scope=message)["Warning"] = f'299 wgpu-backend "ignored: {names}"'

    def _log(self, scope: Scope, status: int, record: Record, seconds: float) -> None:
        path = scope["path"]
        polled = path in _POLLED or path.startswith(_PAGE)
        if polled and status < 400 and not self._debug:
            return
        parts = [time.strftime("%Y-%m-%d %H:%M:%S"), scope["method"], _clean_text(path)]
        parts.append(str(status or "no answer"))
        if record.model:
            parts.append(_clean_text(record.model))
        if record.prompt or record.made:
            parts.append(f"{record.prompt} + {record.made} tokens")
        parts.append(f"{seconds:.3f} s")
        if record.reason:
            parts.append(_clean_text(record.reason, 300))
        if self._debug and record.fields:
            parts.append("fields: " + ", ".join(map(_clean_text, record.fields[:100])))
        _LOG.info("%s", "  ".join(parts))


def note_body(values: Mapping[str, Any]) -> None:
    """Note the names of a body's fields."""
    get_record().fields = tuple(values)


def _clean_text(text: str, most: int = _LONGEST) -> str:
    """Clean a text of a client for one line of the log."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:most])


def _clean_name(name: str) -> str:
    """Clean a name for a quoted string of a header."""
    return "".join(
        letter if " " <= letter <= "~" and letter not in '"\\' else "?" for letter in name
    )
