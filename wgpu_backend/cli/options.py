"""Options that several commands have, declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

from wgpu_backend.cli.failures import Debugging, UsageError

MAX_CONTEXT = 1 << 24  # positions; tables of blocks are made for all of them

DEVICE_VARIABLE = "WGPU_BACKEND_DEVICE"

ProfileName = Literal["full", "baseline"]
CacheType = Literal["f16", "f32", "q8_0", "q4_0"]
Result = TypeVar("Result")


def _debug(context: typer.Context, value: bool) -> bool:
    debugging = context.find_root().obj
    if value and isinstance(debugging, Debugging):
        debugging.on = True
    return value


def _context(value: int | None) -> int | None:
    if value is not None and not 1 <= value <= MAX_CONTEXT:
        raise UsageError(f"--num-ctx: {value}, needs 1 to {MAX_CONTEXT}")
    return value


Model = Annotated[str, typer.Argument(metavar="MODEL", help="GGUF file, or `story`.")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        "-d",
        metavar="NAME",
        envvar=DEVICE_VARIABLE,
        help="Id, kind, or part of a name, as `devices` lists them.",
    ),
]
Profile = Annotated[
    ProfileName,
    typer.Option("--profile", help="`baseline` uses WebGPU's default limits and no features."),
]
Cache = Annotated[CacheType, typer.Option("--kv", help="Type of the cache of keys and values.")]
Exact = Annotated[
    bool,
    typer.Option("--exact", help="Keep activations in f32 where eight bits would be faster."),
]
Context = Annotated[
    int | None,
    typer.Option(
        "--num-ctx", callback=_context, metavar="TOKENS", help="Positions of the context."
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
    debug: Debug = False,
) -> Settings:
    return Settings(device, profile, kv, num_ctx, exact=exact)


def opens_a_model(command: Callable[..., Result]) -> Callable[..., Result]:
    """Decorator: a command gets the options of `Settings` in the place of its `settings`."""
    made: Callable[..., Settings] = _settings
    own = inspect.signature(command, eval_str=True).parameters
    shared = inspect.signature(made, eval_str=True).parameters
    offered = [p for p in own.values() if p.name != "settings"] + list(shared.values())

    @wraps(command)
    def with_options(**given: object) -> Result:
        settings = made(**{name: given.pop(name) for name in shared})
        return command(**given, settings=settings)

    # Typer reads what a command takes here.
    with_options.__signature__ = inspect.Signature(offered)  # pyright: ignore[reportAttributeAccessIssue]
    with_options.__annotations__ = {p.name: p.annotation for p in offered}
    return with_options
