"""The options of `serve`, in groups: each a dataclass whose fields are options.

`settings` of a group checks the options and returns the server's settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wgpu_backend.cli.failures import UsageError, brief
from wgpu_backend.cli.names import exists, find_model, require_file
from wgpu_backend.cli.server_client import KEY_VARIABLE, bracket_ipv6, parse_address

if TYPE_CHECKING:
    from wgpu_backend.server.core.defaults import ModelDefaults

_LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1")
_SCHEMES = ("http", "https")
# Schemes of desktop programs, which web pages cannot have.
_PROGRAMS = ("app", "file", "tauri", "vscode-webview", "vscode-file")
# This machine's origins, which are always allowed.
_LOCAL_ORIGINS = "localhost"
# Patterns are not compiled here: that would take 8 ms of every command's start.
_ORIGIN = r"[a-z][a-z0-9+.-]*://[^\s/,\x00-\x1f\x7f-\uffff]{1,256}"
_ENDING = r"\*[^\s/,*\x00-\x1f\x7f-\uffff]{1,256}"
_NEEDED = "needs *, localhost or http://host:port, in which one * may stand for any text"
_PREFIX = r"(/[A-Za-z0-9_.~-]{1,60}){1,8}/?"
# Files of keys and templates are far smaller; a model by mistake is not read.
_MAX_TEXT_NBYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class AddressOptions:
    """The options of addresses and clients; the properties raise `UsageError` for invalid ones."""

    host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST", help="Address to listen on instead of OLLAMA_HOST; A,B for several."
        ),
    ] = None
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, max=65535, help="Port to listen on instead of OLLAMA_HOST."
        ),
    ] = None
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            envvar=KEY_VARIABLE,
            help="Key that requests must have; A,B for one of several.",
        ),
    ] = None
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of API keys, one per line.")
    ] = None
    cors_origins: Annotated[
        str | None,
        typer.Option(
            metavar="ORIGINS",
            help="Allowed origins: http://a,http://*.b, or * for all; localhost always is.",
        ),
    ] = None
    api_prefix: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Prefix of all paths, such as /llm; disables the page."),
    ] = None

    @property
    def addresses(self) -> tuple[tuple[str, ...], int]:
        """Hosts and the port, from the options or OLLAMA_HOST."""
        found = split_words(self.host or "")
        if self.host is not None and not found:
            raise UsageError(f"--host: {brief(self.host)}, needs an address, such as 127.0.0.1")
        host, port = parse_address(os.environ.get("OLLAMA_HOST"))
        return tuple(map(bracket_ipv6, found)) or (host,), port if self.port is None else self.port

    @property
    def keys(self) -> tuple[str, ...]:
        """API keys; empty if no key is needed."""
        # Typer ignores an empty variable, which must not silently serve without keys.
        variable = os.environ.get(KEY_VARIABLE)
        text = variable if self.api_key is None else self.api_key
        given = split_words(text or "")
        if text is not None and not given:
            name = KEY_VARIABLE if text == variable else "--api-key"
            raise UsageError(f"{name}: is empty, needs a key; leave it out to serve without keys")
        return (*given, *_read_keys(self.api_key_file))

    @property
    def origins(self) -> tuple[str, ...]:
        """The allowed origins from the options, without `localhost`, which is always allowed."""
        text = self.cors_origins
        if text is not None and not split_words(text):
            raise UsageError(f"--cors-origins: {brief(text)}, {_NEEDED}")
        return _parse_origins("--cors-origins", text or "")

    @property
    def prefix(self) -> str:
        """Prefix of all paths, without a trailing slash."""
        text = self.api_prefix
        if text is not None and not re.fullmatch(_PREFIX, text):
            raise UsageError(f"--api-prefix: {brief(text)}, needs a path, such as /llm")
        return (text or "").rstrip("/")

    def settings(self, *, allow_anyone: bool) -> dict[str, Any]:
        """Return the server's settings from these options.

        Parameters
        ----------
        allow_anyone : bool
            Whether other machines may connect without a key.

        Raises
        ------
        UsageError
            An address is open to other machines and there is no key; or an option is invalid.
        """
        (hosts, _), keys = self.addresses, self.keys
        local = all(host in _LOCAL for host in hosts)
        if not local and not keys and not allow_anyone:
            raise UsageError(
                f"serve: {', '.join(hosts)} is open to other machines; give --api-key, or "
                "--allow-anyone"
            )
        # Ollama's defaults.
        own = [f"{scheme}://{host}" for scheme in _SCHEMES for host in _LOCAL]
        own += [f"{scheme}://*" for scheme in _PROGRAMS]
        others = _parse_origins(
            "OLLAMA_ORIGINS", os.environ.get("OLLAMA_ORIGINS", "").strip("\"' ")
        )
        return {
            # Checked against DNS rebinding: a page elsewhere may have a name that resolves to this
            # machine.
            "hosts": _LOCAL if local else (),
            "origins": (*own, *self.origins, *others),
            "api_keys": keys,
            "prefix": self.prefix,
        }


def _parse_origins(name: str, text: str) -> tuple[str, ...]:
    """Parse a list of origins, without `localhost`; raise for invalid ones."""
    # Browsers write origins in lower case.
    found = split_words(text.lower())
    for each in found:
        known = each in ("*", _LOCAL_ORIGINS) or _is_origin(each)
        if not known or each.count("*") > 1:
            raise UsageError(f"{name}: {brief(each)}, {_NEEDED}")
    return tuple(each for each in found if each != _LOCAL_ORIGINS)


def _is_origin(text: str) -> bool:
    return any(re.fullmatch(pattern, text) for pattern in (_ORIGIN, _ENDING))


def _read_keys(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    lines = _read_text("--api-key-file", path).splitlines()
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys:
        raise UsageError(f"--api-key-file: {brief(str(path))} has no key, needs one a line")
    return keys


@dataclass(frozen=True, slots=True)
class DefaultModelOptions:
    """The options of the server's default model."""

    own_model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="NAME", help="Default model for requests that do not name one."
        ),
    ] = None
    any_name: Annotated[
        bool,
        typer.Option("--any-name", help="Use --model for unknown model names."),
    ] = False
    preload: Annotated[
        bool,
        typer.Option("--preload", help="Load --model at start-up and keep it loaded."),
    ] = False
    alias: Annotated[str, typer.Option(metavar="NAMES", help="Other names of --model: A,B.")] = ""
    tags: Annotated[str, typer.Option(metavar="WORDS", help="Tags of --model in lists: A,B.")] = ""
    chat_template: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Chat template of --model: chatml, llama3, … or Jinja source."
        ),
    ] = None
    chat_template_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the chat template of --model.")
    ] = None
    reasoning: Annotated[
        Literal["on", "off", "auto"] | None,
        typer.Option(help="Default of --model for reasoning, if a request does not set it."),
    ] = None
    reasoning_format: Annotated[
        Literal["none", "auto", "deepseek"] | None,
        typer.Option(help="`none` leaves --model's reasoning in the text of OpenAI chat answers."),
    ] = None
    pooling: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="Pooling for embeddings: mean, cls, last, max, weightedmean, mean_sqrt_len, or "
            "several joined by +; none for one vector per token.",
        ),
    ] = None

    def settings(self, sampling: Mapping[str, object]) -> dict[str, Any]:
        """Return the server's settings from these options.

        Parameters
        ----------
        sampling : mapping
            Given parameters of the model's answers, by name.

        Raises
        ------
        UsageError
            Options of the model are given without --model, or the template is invalid.
        """
        defaults = self.defaults(sampling)
        if self.own_model is None:
            self._require_nothing_given(defaults)
        return {
            "default_model": self.own_model or "",
            "any_name": self.any_name,
            "preload": self.preload,
            "aliases": split_words(self.alias),
            "tags": split_words(self.tags),
            "defaults": defaults,
            "pooling": _check_pooling(self.pooling),
        }

    def defaults(self, sampling: Mapping[str, object]) -> ModelDefaults:
        """Return the defaults for requests that do not set an option; raises like `settings`."""
        from wgpu_backend.server.core.defaults import ModelDefaults

        template = _load_template(self.chat_template, self.chat_template_file)
        raw = self.reasoning_format == "none"
        return ModelDefaults(template, self.reasoning or "", sampling, raw_thoughts=raw)

    def _require_nothing_given(self, defaults: ModelDefaults) -> None:
        given = {
            "--any-name": self.any_name,
            "--preload": self.preload,
            "--alias": self.alias,
            "--tags": self.tags,
            "--chat-template": defaults.template,
            "--reasoning": self.reasoning,
            "--reasoning-format": self.reasoning_format,
            "--pooling": self.pooling,
            **{"--" + name.replace("_", "-"): True for name in defaults.sampling},
        }
        for option in (option for option, value in given.items() if value):
            raise UsageError(f"{option}: requires --model")


def _check_pooling(text: str | None) -> str | None:
    """Check the pooling; raises like `DefaultModelOptions.settings`."""
    from wgpu_backend.engine.pooling import require_known_pooling
    from wgpu_backend.errors import OptionError

    try:
        return text if text in (None, "none") else require_known_pooling(text)
    except OptionError as error:
        raise UsageError(f"--{error}, or none") from None


def _load_template(text: str | None, path: Path | None) -> str:
    """Return the chat template given by name, as Jinja or in a file; empty if none is given."""
    from wgpu_backend.errors import TemplateError
    from wgpu_backend.text.chat_template import ChatTemplate
    from wgpu_backend.text.chat_template.builtin_templates import resolve_template

    option = "--chat-template" if path is None else "--chat-template-file"
    if text is not None and path is not None:
        raise UsageError("--chat-template and --chat-template-file: give one")
    try:
        if text is not None:
            return ChatTemplate(resolve_template(text)).source
        return "" if path is None else ChatTemplate(_read_text(option, path)).source
    except TemplateError as error:
        raise UsageError(f"{option}: {error}") from None


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of all models' engines."""

    slot_save_path: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for saved slots.")
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(metavar="N", min=32, max=256, help="Most tokens in one pass."),
    ] = None
    cache_ram: Annotated[
        int | None,
        typer.Option(
            metavar="MIB",
            min=0,
            max=1 << 24,
            help="Host memory for prompt caches that do not fit on the device.",
        ),
    ] = None
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic", help="Give the same answer for a seed under any load; slower."
        ),
    ] = False

    def settings(self) -> dict[str, Any]:
        """Return the server's settings from these options.

        Raises
        ------
        UsageError
            The folder does not exist.
        """
        return {"slot_folder": _require_folder(self.slot_save_path)}

    def engine(self) -> dict[str, Any]:
        """Return the arguments of engines that were given."""
        given = {
            "batch_tokens": self.batch_size,
            # The option is in MiB, as llama-server's.
            "host_cache": None if self.cache_ram is None else self.cache_ram << 20,
            "deterministic": self.deterministic or None,
        }
        return {name: value for name, value in given.items() if value is not None}


def make_draft_arguments(draft: str | None, tokens: int | None) -> dict[str, Any]:
    """Return the arguments of engines for speculative decoding.

    Parameters
    ----------
    draft : str or None
        ``ngram``, or the draft model.
    tokens : int or None
        Draft tokens at once.

    Raises
    ------
    UsageError
        The draft model does not exist, or `tokens` is given without a draft.
    """
    if draft is None:
        if tokens is not None:
            raise UsageError("--draft-tokens: requires --draft ngram or a model")
        return {}
    found = draft if draft == "ngram" else str(find_model(draft).absolute())
    return {"draft": found} | ({} if tokens is None else {"draft_tokens": tokens})


def _require_folder(path: Path | None) -> Path | None:
    if path is None:
        return None
    if not exists(str(path)) or not path.is_dir():
        raise UsageError(f"--slot-save-path: {brief(str(path))}: no such folder")
    return path.absolute()


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """The options of the server's API, as clients see it."""

    no_slots: Annotated[bool, typer.Option("--no-slots", help="Disable the slots endpoint.")] = (
        False
    )
    no_metrics: Annotated[
        bool, typer.Option("--no-metrics", help="Disable metrics for Prometheus.")
    ] = False
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Return the rendered prompt of a chat with its answer."),
    ] = False
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Reject unknown fields and options."),
    ] = False
    allow_remote_images: Annotated[
        bool,
        typer.Option(
            "--allow-remote-images", help="Fetch pictures at http(s) URLs of public addresses."
        ),
    ] = False
    no_page: Annotated[bool, typer.Option("--no-page", "--no-ui", help="Disable the web page.")] = (
        False
    )

    def settings(self, prefix: str) -> dict[str, Any]:
        """Return the server's settings; a path prefix disables the web page."""
        shown = {
            "slots": not self.no_slots,
            "metrics": not self.no_metrics,
            # The page's addresses begin at the root.
            "page": not self.no_page and not prefix,
            "verbose": self.verbose,
        }
        return {
            "shows": frozenset(name for name, on in shown.items() if on),
            "strict": self.strict,
        }


def split_words(text: str) -> tuple[str, ...]:
    """Split a list at commas, without empty words."""
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _read_text(option: str, path: Path) -> str:
    """Read the text of a file that an option names.

    Raises
    ------
    UsageError
        It does not exist, is too large, or is not UTF-8.
    """
    try:
        file = require_file(path)
        size = file.stat().st_size
        if size > _MAX_TEXT_NBYTES:
            raise UsageError(f"{option}: {size} bytes, needs at most {_MAX_TEXT_NBYTES}")
        return file.read_text("utf-8")
    except FileNotFoundError:
        raise UsageError(f"{option}: {brief(str(path))}: no such file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{option}: {brief(str(path))}: not UTF-8") from None
