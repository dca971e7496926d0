"""Options that several commands have, declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

from wgpu_backend.cli.completion import complete_device, complete_model
from wgpu_backend.cli.failures import Debugging, UsageError
from wgpu_backend.cli.parameters import PARAMETERS, chosen
from wgpu_backend.cli.parameters import options as parameter_options

DEVICE_VARIABLE = "WGPU_BACKEND_DEVICE"
HISTORY_VARIABLE = "WGPU_BACKEND_NO_HISTORY"

ProfileName = Literal["full", "baseline"]
CacheType = Literal["f16", "f32", "q8_0", "q4_0"]
Result = TypeVar("Result")


def _debug(context: typer.Context, value: bool) -> bool:
    debugging = context.find_root().obj
    if value and isinstance(debugging, Debugging):
        debugging.on = True
    return value


def _imports(context: typer.Context, files: list[Path] | None) -> list[Path]:
    """Import files of the user's own, so that what they register is there for the command."""
    if files and not context.resilient_parsing:
        from wgpu_backend.cli.names import regular
        from wgpu_backend.plugins import import_file

        for file in files:
            try:
                import_file(regular(file, ".py"))
            except FileNotFoundError:
                raise UsageError(f"--import: {file}: no such file") from None
    return files or []


Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="GGUF file, or `story`.", autocompletion=complete_model),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        "-d",
        metavar="NAME",
        envvar=DEVICE_VARIABLE,
        help="Id, kind, or part of a name, as `devices` lists them.",
        autocompletion=complete_device,
    ),
]
Profile = Annotated[
    ProfileName,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="`full`, or `baseline` with WebGPU's default limits and no features.",
    ),
]
Cache = Annotated[
    CacheType,
    typer.Option("--kv", metavar="TYPE", help="Cache of keys and values: f16, f32, q8_0 or q4_0."),
]
Exact = Annotated[
    bool,
    typer.Option("--exact", help="Keep activations in f32 where eight bits would be faster."),
]
_CONTEXT = PARAMETERS["num_ctx"]
Context = Annotated[
    str | None, typer.Option(_CONTEXT.option, metavar="NUMBER", help=_CONTEXT.described)
]
Imports = Annotated[
    list[Path] | None,
    typer.Option(
        "--import",
        callback=_imports,
        metavar="FILE.py",
        help="Python file that registers an architecture or ops of your own.",
    ),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", callback=_debug, help="Show where an error comes from."),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]
OutFile = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", dir_okay=False)]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is to be opened.

    Parameters
    ----------
    device : str or None
        What the user calls the device; None for the best.
    profile : str
    kv : str
        Type of the cache: ``f16``, ``f32``, ``q8_0`` or ``q4_0``.
    num_ctx : int or None
        Positions of the context; None for the model's own, at most 4096.
    verbose : bool
        Say which device runs even where nobody looks.
    exact : bool
        Keep activations in f32 where eight bits would be faster.
    """

    device: str | None = None
    profile: ProfileName = "full"
    kv: CacheType = "f16"
    num_ctx: int | None = None
    verbose: bool = False
    exact: bool = False


def _settings(
    num_ctx: Context = None,
    device: Device = None,
    profile: Profile = "full",
    kv: Cache = "f16",
    exact: Exact = False,
    imports: Imports = None,
    debug: Debug = False,
) -> Settings:
    positions = None if num_ctx is None else int(_CONTEXT.number(num_ctx, _CONTEXT.option))
    return Settings(device, profile, kv, positions, exact=exact)


def opens_a_model(command: Callable[..., Result]) -> Callable[..., Result]:
    """Decorator: a command gets the options of `Settings` in the place of its `settings`."""
    shared = inspect.signature(_settings, eval_str=True).parameters
    return _gathered(command, "settings", list(shared.values()), _settings)


def makes_answers(command: Callable[..., Result]) -> Callable[..., Result]:
    """Decorator: a command gets an option for each parameter in the place of `parameters`."""
    return _gathered(command, "parameters", parameter_options(), chosen)


def _gathered(
    command: Callable[..., Result],
    place: str,
    parts: Sequence[inspect.Parameter],
    make: Callable[..., object],
) -> Callable[..., Result]:
    """Command with options in the place of one argument, which is made of their values."""
    own = inspect.signature(command, eval_str=True).parameters
    offered = [p for p in own.values() if p.name != place]
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    at = next((i for i, p in enumerate(offered) if p.kind == keyword_only), len(offered))
    offered[at:at] = parts

    @wraps(command)
    def with_options(**given: object) -> Result:
        made = make(**{part.name: given.pop(part.name) for part in parts})
        return command(**given, **{place: made})

    # Typer reads what a command takes here.
    with_options.__signature__ = inspect.Signature(offered)  # pyright: ignore[reportAttributeAccessIssue]
    with_options.__annotations__ = {p.name: p.annotation for p in offered}
    return with_options
