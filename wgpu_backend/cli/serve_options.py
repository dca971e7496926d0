"""What `serve` may be told of its clients and of its own model, in llama-server's words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from wgpu_backend.cli.failures import UsageError, brief
from wgpu_backend.cli.options import Result, gathered

_LOCAL_ORIGINS = "localhost"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/,\x00-\x1f\x7f-\uffff]{1,256}")
_PREFIX = re.compile(r"(/[A-Za-z0-9_.~-]{1,60}){1,8}/?")
_MOST_BYTES = 1 << 20  # of a file of keys, or of a template
Pooling = Literal["none", "mean", "cls", "last"]


@dataclass(frozen=True, slots=True)
class Given:
    """What was given.

    Parameters
    ----------
    hosts : tuple of str
        Addresses to listen at; empty for those of the environment.
    port : int or None
    keys, origins : tuple of str
    own_model : str or None
        Meant where a request names none.
    any_name, preload : bool
    own : mapping
        Settings of the server about its own model.
    engine : mapping
        Arguments of all models' engines.
    """

    hosts: tuple[str, ...]
    port: int | None
    keys: tuple[str, ...]
    origins: tuple[str, ...]
    own_model: str | None
    any_name: bool
    preload: bool
    own: Mapping[str, Any]
    engine: Mapping[str, Any]


def _given(
    host: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Where to listen, in OLLAMA_HOST's place; A,B for both."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=65535, help="Likewise.")
    ] = None,
    api_key: Annotated[
        str,
        typer.Option(
            "--api-key",
            metavar="KEY",
            envvar="WGPU_BACKEND_API_KEY",
            help="Serve only requests that have this key; A,B for one of several.",
        ),
    ] = "",
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keys, one a line.")
    ] = None,
    cors_origins: Annotated[
        str | None,
        typer.Option(
            metavar="ORIGINS",
            help="Pages that may call: http://a,http://b, or * for all; this machine's always may.",
        ),
    ] = None,
    api_prefix: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="In front of all paths, such as /llm; without a page."),
    ] = None,
    own_model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Meant where a request names no model."),
    ] = None,
    any_name: Annotated[
        bool,
        typer.Option("--any-name", help="Take --model for names of models that are not there."),
    ] = False,
    preload: Annotated[
        bool,
        typer.Option("--preload", help="Load --model before requests are served, and keep it."),
    ] = False,
    alias: Annotated[
        str, typer.Option(metavar="NAMES", help="Further names of --model: A,B.")
    ] = "",
    tags: Annotated[
        str, typer.Option(metavar="WORDS", help="What lists say beside --model: A,B.")
    ] = "",
    chat_template: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Template of --model's chats: chatml, llama3, …, or Jinja itself."
        ),
    ] = None,
    chat_template_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same, in a file.")
    ] = None,
    reasoning: Annotated[
        Literal["on", "off", "auto"] | None,
        typer.Option(help="Whether --model reasons where a request says nothing."),
    ] = None,
    reasoning_format: Annotated[
        Literal["none", "auto", "deepseek"] | None,
        typer.Option(help="`none` leaves --model's reasoning in the text of OpenAI's chats."),
    ] = None,
    pooling: Annotated[
        Pooling | None,
        typer.Option(help="What makes a text's vector of its tokens'; none gives them all."),
    ] = None,
    slot_save_path: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where slots' contents may be saved.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(metavar="N", min=32, max=256, help="Tokens that one pass computes at most."),
    ] = None,
    cache_ram: Annotated[
        int | None,
        typer.Option(
            metavar="MIB",
            min=0,
            max=1 << 24,
            help="Memory for texts that devices have no room for.",
        ),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Seeded answers are the same under any load; slower."),
    ] = False,
    no_slots: Annotated[bool, typer.Option("--no-slots", help="Do not tell of slots.")] = False,
    no_metrics: Annotated[
        bool, typer.Option("--no-metrics", help="Do not tell figures to Prometheus.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Give each chat's prompt beside its answer.")
    ] = False,
    no_page: Annotated[
        bool, typer.Option("--no-page", "--no-ui", help="Have no page for browsers.")
    ] = False,
) -> Given:
    from wgpu_backend.server.manner import Manner

    template = _template(chat_template, chat_template_file)
    hidden = {
        "slots": no_slots,
        "metrics": no_metrics,
        "page": no_page or api_prefix is not None,
        "verbose": not verbose,
    }
    own: dict[str, Any] = {
        "aliases": _words(alias),
        "tags": _words(tags),
        "manner": Manner(template, reasoning or "", raw_thoughts=reasoning_format == "none"),
        "prefix": _prefix(api_prefix),
        "pooling": pooling,
        "slot_folder": _folder(slot_save_path),
        "shows": frozenset(name for name, off in hidden.items() if not off),
    }
    only_own = {
        "--any-name": any_name, "--preload": preload, "--alias": alias, "--tags": tags,
        "--chat-template": template, "--reasoning": reasoning,
        "--reasoning-format": reasoning_format, "--pooling": pooling,
    }  # fmt: skip
    for option, value in only_own.items():
        if value and own_model is None:
            raise UsageError(f"{option}: there is no model that is meant; give --model")
    hosts, keys = _hosts(host), (*_words(api_key), *_keys_of(api_key_file))
    engine = {
        "batch_tokens": batch_size,
        "host_cache": None if cache_ram is None else cache_ram << 20,
        "deterministic": deterministic or None,
    }
    told = {name: value for name, value in engine.items() if value is not None}
    origins = _origins(cors_origins)
    return Given(hosts, port, keys, origins, own_model, any_name, preload, own, told)


def serves(command: Callable[..., Result]) -> Callable[..., Result]:
    """Decorator: a command gets options for all of it in the place of its `given`."""
    import inspect

    shared = inspect.signature(_given, eval_str=True).parameters
    return gathered(command, "given", list(shared.values()), _given)


def _words(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _hosts(text: str | None) -> tuple[str, ...]:
    found = _words(text or "")
    if text is not None and not found:
        raise UsageError(f"--host: {brief(text)}, needs an address, such as 127.0.0.1")
    return found


def _origins(text: str | None) -> tuple[str, ...]:
    """Origins that were given, without the word for those that may call anyway."""
    found = _words(text or "")
    known = all(each in ("*", _LOCAL_ORIGINS) or _ORIGIN.fullmatch(each) for each in found)
    if text is not None and not (found and known):
        raise UsageError(f"--cors-origins: {brief(text)}, needs *, localhost or http://host:port")
    return tuple(each for each in found if each != _LOCAL_ORIGINS)


def _prefix(text: str | None) -> str:
    """What stands in front of paths, without a slash at its end."""
    if text is not None and not _PREFIX.fullmatch(text):
        raise UsageError(f"--api-prefix: {brief(text)}, needs a path, such as /llm")
    return (text or "").rstrip("/")


def _keys_of(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    keys = tuple(
        line.strip() for line in _read("--api-key-file", path).splitlines() if line.strip()
    )
    if not keys:
        raise UsageError(f"--api-key-file: {brief(str(path))} has no key, needs one a line")
    return keys


def _template(text: str | None, path: Path | None) -> str:
    """Jinja that was given by its name, as a text or in a file; empty where none was."""
    from wgpu_backend.chat_template import ChatTemplate
    from wgpu_backend.chat_template.named import template_named
    from wgpu_backend.errors import TemplateError

    option = "--chat-template" if path is None else "--chat-template-file"
    if text is not None and path is not None:
        raise UsageError("--chat-template and --chat-template-file: give one")
    try:
        if text is not None:
            return ChatTemplate(template_named(text)).source
        return "" if path is None else ChatTemplate(_read(option, path)).source
    except TemplateError as error:
        raise UsageError(f"{option}: {error}") from None


def _read(option: str, path: Path) -> str:
    from wgpu_backend.cli.names import regular

    try:
        file = regular(path)
        size = file.stat().st_size
        if size > _MOST_BYTES:
            raise UsageError(f"{option}: {size} bytes, needs at most {_MOST_BYTES}")
        return file.read_text("utf-8")
    except FileNotFoundError:
        raise UsageError(f"{option}: {brief(str(path))}: no such file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{option}: {brief(str(path))}: no text in UTF-8") from None


def _folder(path: Path | None) -> Path | None:
    from wgpu_backend.cli.names import exists

    if path is None:
        return None
    if not exists(str(path)) or not path.is_dir():
        raise UsageError(f"--slot-save-path: {brief(str(path))}: no such folder")
    return path.absolute()
