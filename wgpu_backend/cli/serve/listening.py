"""The addresses, API keys and origins of `serve`."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

import typer

from wgpu_backend.cli.failures import UsageError, brief
from wgpu_backend.cli.serve.texts import text_of, words

KEY_VARIABLE = "WGPU_BACKEND_API_KEY"
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 11434
_LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1")
_SCHEMES = ("http", "https")
# Schemes of desktop programs, which web pages cannot have.
_PROGRAMS = ("app", "file", "tauri", "vscode-webview", "vscode-file")
_SCHEME_PORTS = {"http": 80, "https": 443}
_PORT_DIGITS = 5
_LOCAL_ORIGINS = "localhost"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/,\x00-\x1f\x7f-\uffff]{1,256}")
_ENDING = re.compile(r"\*[^\s/,*\x00-\x1f\x7f-\uffff]{1,256}")
_NEEDED = "needs *, localhost or http://host:port, in which one * may stand for any text"
_PREFIX = re.compile(r"(/[A-Za-z0-9_.~-]{1,60}){1,8}/?")


@dataclass(frozen=True, slots=True)
class Listening:
    """The options of addresses and clients; the properties raise `UsageError` for invalid ones."""

    host: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Where to listen, in OLLAMA_HOST's place; A,B for both."),
    ] = None
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, max=65535, help="Port to listen at, in OLLAMA_HOST's place."
        ),
    ] = None
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            envvar=KEY_VARIABLE,
            help="Serve only requests that have this key; A,B for one of several.",
        ),
    ] = None
    api_key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Keys, one a line.")] = (
        None
    )
    cors_origins: Annotated[
        str | None,
        typer.Option(
            metavar="ORIGINS",
            help="Pages that may call: http://a,http://*.b, * for all; this machine's always may.",
        ),
    ] = None
    api_prefix: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Prefix of all paths, such as /llm; disables the page."),
    ] = None

    @property
    def addresses(self) -> tuple[tuple[str, ...], int]:
        """Hosts and the port, from the options or OLLAMA_HOST."""
        found = words(self.host or "")
        if self.host is not None and not found:
            raise UsageError(f"--host: {brief(self.host)}, needs an address, such as 127.0.0.1")
        host, port = address(os.environ.get("OLLAMA_HOST"))
        return tuple(map(bracketed, found)) or (host,), port if self.port is None else self.port

    @property
    def keys(self) -> tuple[str, ...]:
        """API keys; empty if no key is needed."""
        variable = os.environ.get(KEY_VARIABLE)  # click ignores an empty variable
        text = variable if self.api_key is None else self.api_key
        given = words(text or "")
        if text is not None and not given:
            name = KEY_VARIABLE if text == variable else "--api-key"
            raise UsageError(f"{name}: is empty, needs a key; leave it out to serve anybody")
        return (*given, *_keys_of(self.api_key_file))

    @property
    def origins(self) -> tuple[str, ...]:
        """Given origins, without `localhost`, which is always allowed."""
        text = self.cors_origins
        if text is not None and not words(text):
            raise UsageError(f"--cors-origins: {brief(text)}, {_NEEDED}")
        return _origins("--cors-origins", text or "")

    @property
    def prefix(self) -> str:
        """Prefix of all paths, without a trailing slash."""
        text = self.api_prefix
        if text is not None and not _PREFIX.fullmatch(text):
            raise UsageError(f"--api-prefix: {brief(text)}, needs a path, such as /llm")
        return (text or "").rstrip("/")

    def settings(self, *, anybody: bool) -> dict[str, Any]:
        """Return the server's settings from these options.

        Parameters
        ----------
        anybody : bool
            Whether other machines may connect without a key.

        Raises
        ------
        UsageError
            An address is open to other machines and there is no key; or an option is invalid.
        """
        (hosts, _), keys = self.addresses, self.keys
        local = all(host in _LOCAL for host in hosts)
        if not local and not keys and not anybody:
            raise UsageError(
                f"serve: {', '.join(hosts)} is open to other machines; give --api-key, or "
                "--allow-anyone"
            )
        own = [f"{scheme}://{host}" for scheme in _SCHEMES for host in _LOCAL]
        own += [f"{scheme}://*" for scheme in _PROGRAMS]
        others = _origins("OLLAMA_ORIGINS", os.environ.get("OLLAMA_ORIGINS", "").strip("\"' "))
        return {
            "hosts": _LOCAL if local else (),
            "origins": (*own, *self.origins, *others),
            "api_keys": keys,
            "prefix": self.prefix,
        }


def _origins(name: str, text: str) -> tuple[str, ...]:
    """Parse a list of origins, without `localhost`; raise for invalid ones."""
    found = words(text.lower())  # as browsers write them
    for each in found:
        known = each in ("*", _LOCAL_ORIGINS) or _ORIGIN.fullmatch(each) or _ENDING.fullmatch(each)
        if not known or each.count("*") > 1:
            raise UsageError(f"{name}: {brief(each)}, {_NEEDED}")
    return tuple(each for each in found if each != _LOCAL_ORIGINS)


def address(text: str | None) -> tuple[str, int]:
    """Parse ``OLLAMA_HOST``: ``host``, ``host:port``, ``:port``, a URL, or an address.

    A URL without a port has its scheme's port, as in Ollama; IPv6 addresses get brackets.

    Raises
    ------
    UsageError
        The port is invalid.
    """
    scheme, rest = scheme_of(text)
    usual = _SCHEME_PORTS.get(scheme, DEFAULT_PORT)
    if _is_address(rest):
        return bracketed(rest), usual
    host, colon, port = rest.rpartition(":")
    if not colon:
        host, port = rest, str(usual)
    if not port.isdecimal() or len(port) > _PORT_DIGITS or int(port) >= 1 << 16:
        raise UsageError(f"OLLAMA_HOST: {brief(rest)}, needs host:port")
    return bracketed(host) or DEFAULT_HOST, int(port)


def scheme_of(text: str | None) -> tuple[str, str]:
    """Split ``OLLAMA_HOST`` into the scheme, which may be empty, and the rest, without quotes."""
    rest = (text or "").strip().strip("\"'").strip()
    before, found, behind = rest.partition("://")
    return (before.lower(), behind.rstrip("/")) if found else ("", rest.rstrip("/"))


def bracketed(host: str) -> str:
    """Put an IPv6 address in brackets, as URLs need it."""
    bare = host.strip("[]")
    return f"[{bare}]" if ":" in bare and _is_address(bare) else host


def is_local(host: str) -> bool:
    """Return whether a host is a loopback address of this machine."""
    with suppress(ValueError):
        return ip_address(host.strip("[]")).is_loopback
    return host.lower() == "localhost"


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        ip_address(host.strip("[]"))
        return True
    return False


def _keys_of(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    lines = text_of("--api-key-file", path).splitlines()
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys:
        raise UsageError(f"--api-key-file: {brief(str(path))} has no key, needs one a line")
    return keys
