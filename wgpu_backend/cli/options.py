"""Options that several commands share."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, cast

import typer

from wgpu_backend.cli.completion import complete_device, complete_model, complete_stored
from wgpu_backend.cli.failures import Debugging, UsageError, brief
from wgpu_backend.cli.names import exists, require_file
from wgpu_backend.cli.parameters import MAX_CONTEXT, PARAMETERS, parse_parameters
from wgpu_backend.cli.parameters import options as parameter_options

if TYPE_CHECKING:
    from wgpu_backend.ml.placement import PlacementOptions

DEVICE_VARIABLE = "WGPU_BACKEND_DEVICE"
SPREAD_VARIABLE, OVERHEAD_VARIABLE = "OLLAMA_SCHED_SPREAD", "OLLAMA_GPU_OVERHEAD"
IMPLEMENTATION_VARIABLE = "WGPU_BACKEND_IMPLEMENTATION"
HISTORY_VARIABLES = ["WGPU_BACKEND_NO_HISTORY", "OLLAMA_NOHISTORY"]

ProfileName = Literal["full", "baseline"]
ImplementationName = Literal["auto", "wgpu", "dawn"]
SplitModeName = Literal["layer", "none", "row"]
CacheType = Literal["f16", "f32", "q8_0", "q4_0"]
Result = TypeVar("Result")


def _set_debug(context: typer.Context, value: bool) -> bool:
    debugging = context.find_root().obj
    if value and isinstance(debugging, Debugging):
        debugging.on = True
    return value


def _import_files(context: typer.Context, files: list[Path] | None) -> list[Path]:
    """Import the user's files, so that the command can use the ops they register."""
    # Shell completion parses the line as well, and must not run the user's code.
    if files and not context.resilient_parsing:
        from wgpu_backend.cli.names import require_file
        from wgpu_backend.ops.plugins import import_file

        for file in files:
            try:
                import_file(require_file(file, ".py"))
            except FileNotFoundError:
                raise UsageError(f"--import: {file}: no such file") from None
    return files or []


def _list_devices(context: typer.Context, value: bool) -> None:
    if value and not context.resilient_parsing:
        from wgpu_backend.cli.device_table import print_devices

        print_devices()
        raise typer.Exit


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="GGUF file, Hugging Face folder, or `story`.",
        autocompletion=complete_model,
    ),
]
StoredName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name in the store, such as qwen2.5:7b.",
        autocompletion=complete_stored,
    ),
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
Devices = Annotated[
    str | None,
    typer.Option(
        "--device",
        "--devices",
        "-d",
        "-dev",
        metavar="NAME",
        envvar=DEVICE_VARIABLE,
        help="Id, kind, or part of a name, as `devices` lists them; A,B for several.",
        autocompletion=complete_device,
    ),
]
GpuLayers = Annotated[
    str | None,
    typer.Option(
        "--gpu-layers",
        "--n-gpu-layers",
        "-ngl",
        metavar="N",
        help="Last layers that go on GPUs, the others on the CPU: a number, `all` or `auto`.",
    ),
]
TensorSplit = Annotated[
    str | None,
    typer.Option(
        "--tensor-split",
        "-ts",
        metavar="A,B",
        help="Shares of those layers by device, such as 3,1.",
    ),
]
MainGpu = Annotated[
    int | None,
    typer.Option(
        "--main-gpu", "-mg", metavar="N", help="Device that is filled first, by its position."
    ),
]
SplitMode = Annotated[
    SplitModeName | None,
    typer.Option(
        "--split-mode",
        "-sm",
        metavar="MODE",
        help="`layer`, or `none` to use the main GPU only; `row` is not supported.",
    ),
]
OpOffload = Annotated[
    bool | None,
    typer.Option(
        "--op-offload/--no-op-offload",
        help="Have GPUs compute the layers that stay in the host's memory, or the CPU.",
    ),
]
KvOffload = Annotated[
    bool | None,
    typer.Option(
        "--kv-offload/--no-kv-offload",
        "-kvo/-nkvo",
        help="Keep keys and values in the memory of GPUs (default), or of the host.",
    ),
]
ListDevices = Annotated[
    bool,
    typer.Option(
        "--list-devices", callback=_list_devices, is_eager=True, help="List devices and exit."
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
Implementation = Annotated[
    ImplementationName | None,
    typer.Option(
        "--implementation",
        metavar="NAME",
        help="WebGPU implementation: `wgpu`, `dawn` (needs the extra `dawn`), or `auto`.",
    ),
]
Cache = Annotated[
    CacheType,
    typer.Option(
        "--kv",
        metavar="TYPE",
        envvar="OLLAMA_KV_CACHE_TYPE",
        help="Cache of keys and values: f16, f32, q8_0 or q4_0.",
    ),
]
Exact = Annotated[
    bool,
    typer.Option("--exact", help="Keep activations in f32 even if rounding would be faster."),
]
Coarse = Annotated[
    bool,
    typer.Option("--coarse", help="Round activations to eight bits: faster, but answers change."),
]
_CONTEXT = PARAMETERS["num_ctx"]
Context = Annotated[
    str | None, typer.Option(_CONTEXT.option, metavar="NUMBER", help=_CONTEXT.help_text)
]


Parallel = Annotated[
    int,
    typer.Option(
        "--num-parallel", "--parallel", metavar="N", min=1, max=32, help="Parallel answers."
    ),
]


def _require_files(param: typer.CallbackParam, files: list[str] | None) -> list[str] | None:
    """Check that pictures or sounds are files before a model is loaded for them."""
    for file in files or ():
        try:
            require_file(Path(file))
        except FileNotFoundError:
            raise UsageError(f"{param.opts[0]}: {brief(file)}: no such file") from None
    return files


def _require_videos(videos: list[str] | None) -> list[str] | None:
    """Check that videos are files or folders before a model is loaded for them."""
    for video in videos or ():
        try:
            # Path.is_dir raises for names that are too long.
            if not os.path.isdir(video):  # noqa: PTH112
                require_file(Path(video))
        except FileNotFoundError:
            raise UsageError(f"--video: {brief(video)}: no such file or folder") from None
    return videos


def _require_tower(path: Path | None) -> Path | None:
    if path is not None and not exists(str(path / "config.json")):
        try:
            require_file(path)
        except FileNotFoundError:
            raise UsageError(f"--mmproj: {brief(str(path))}: no such file") from None
    return path


Mmproj = Annotated[
    Path | None,
    typer.Option(
        "--mmproj",
        callback=_require_tower,
        metavar="FILE",
        help="Tower for pictures; by default the model's own, or the mmproj*.gguf in its folder.",
    ),
]
NoWarmup = Annotated[
    bool,
    typer.Option(
        "--no-warmup", help="Load towers with the first picture or sound, instead of running them."
    ),
]
Images = Annotated[
    list[str] | None,
    typer.Option(
        "--image",
        metavar="FILE",
        callback=_require_files,
        help="Picture; may be given several times.",
    ),
]
Sounds = Annotated[
    list[str] | None,
    typer.Option(
        "--audio",
        metavar="FILE",
        callback=_require_files,
        help="Sound; may be given several times.",
    ),
]
Videos = Annotated[
    list[str] | None,
    typer.Option(
        "--video",
        metavar="FILE",
        callback=_require_videos,
        help="Video: a folder of pictures, or an animated GIF, WebP or PNG; may be given often.",
    ),
]
FramesPerSecond = Annotated[
    float | None,
    typer.Option("--fps", metavar="X", min=0.001, help="Frames in a second of --video, usually 2."),
]
Loras = Annotated[
    list[Path] | None,
    typer.Option("--lora", metavar="FILE", help="LoRA adapter; may be given several times."),
]
ScaledLoras = Annotated[
    list[str] | None,
    typer.Option("--lora-scaled", metavar="FILE:SCALE", help="LoRA adapter and its scale."),
]
ControlVectors = Annotated[
    list[Path] | None,
    typer.Option(
        "--control-vector", metavar="FILE", help="Control vector; may be given several times."
    ),
]
ScaledControlVectors = Annotated[
    list[str] | None,
    typer.Option(
        "--control-vector-scaled", metavar="FILE:SCALE", help="Control vector and its scale."
    ),
]
ControlLayers = Annotated[
    tuple[int, int] | None,
    typer.Option(
        "--control-vector-layer-range",
        metavar="FIRST LAST",
        help="First and last layer to steer, instead of all.",
    ),
]
Imports = Annotated[
    list[Path] | None,
    typer.Option(
        "--import",
        callback=_import_files,
        metavar="FILE.py",
        help="Python file that registers your own architecture or ops.",
    ),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", callback=_set_debug, help="Print the traceback of an error."),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]
ImportanceMatrix = Annotated[
    Path | None,
    typer.Option(
        "--imatrix", metavar="FILE", dir_okay=False, help="Importance matrix, GGUF or .dat."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", metavar="N", min=1, max=1024, help="Number of threads; default: one per core."
    ),
]
Pixels = Annotated[
    int | None, typer.Option(metavar="N", min=1, max=16384, help="Size of the image in pixels.")
]
PromptTokens = Annotated[
    int, typer.Option("-p", "--n-prompt", min=1, max=MAX_CONTEXT, help="Tokens of the prompt.")
]
OutFile = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", dir_okay=False)]


Scaled = tuple[Path, float]


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """The adapters and control vectors of a model.

    Parameters
    ----------
    loras, control_vectors : sequence of (Path, float)
        Files and scales.
    control_layers : pair of int or None
        First and last layer to steer; None for all.
    """

    loras: Sequence[Scaled] = ()
    control_vectors: Sequence[Scaled] = ()
    control_layers: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The options of loading a model.

    Parameters
    ----------
    device : str or None
        Name of the device; None for the best, or for several devices.
    devices : tuple of str
        Names of several devices.
    placement : PlacementOptions or None
        How layers are placed on devices; None for the whole model on one.
    kv : str
        Type of the KV cache: ``f16``, ``f32``, ``q8_0`` or ``q4_0``.
    num_ctx : int or None
        Positions in the context; None for the model's own, at most 4096.
    verbose : bool
        Print notes about the device even without a terminal.
    exact : bool
        Keep activations in f32 even if rounding would be faster.
    coarse : bool
        Round activations to eight bits if that is faster.
    debug : bool
        Print more details, and tracebacks of errors.
    mmproj : Path or None
        File or folder of the model's tower for pictures or sound; None to look for it.
    warmup : bool
        Run the towers on a blank picture or sound while the model loads.
    """

    device: str | None = None
    profile: ProfileName = "full"
    kv: CacheType = "f16"
    num_ctx: int | None = None
    verbose: bool = False
    exact: bool = False
    adapters: AdapterSettings = field(default_factory=AdapterSettings)
    coarse: bool = False
    debug: bool = False
    mmproj: Path | None = None
    warmup: bool = False
    devices: tuple[str, ...] = ()
    placement: PlacementOptions | None = None


def make_placement(
    devices: Sequence[str],
    gpu_layers: str | None,
    tensor_split: str | None,
    main_gpu: int | None,
    split_mode: SplitModeName | None,
    op_offload: bool | None = None,
    kv_offload: bool | None = None,
) -> PlacementOptions | None:
    """Return how layers are placed on devices, or None if no option places them.

    ``OLLAMA_SCHED_SPREAD`` and ``OLLAMA_GPU_OVERHEAD`` of the environment count, too.

    Raises
    ------
    OptionError, UsageError
        A value is out of range.
    """
    given = (gpu_layers, tensor_split, main_gpu, split_mode, op_offload, kv_offload)
    spread = os.environ.get(SPREAD_VARIABLE, "").strip().casefold() not in ("", "0", "f", "false")
    overhead = os.environ.get(OVERHEAD_VARIABLE, "").strip() or "0"
    unset = not spread and overhead == "0" and all(value is None for value in given)
    if len(devices) < 2 and unset:
        return None
    from wgpu_backend.ml.placement import RESERVE_NBYTES, PlacementOptions
    from wgpu_backend.ml.placement_arguments import parse_peer_layers, parse_split

    if not overhead.isdecimal() or len(overhead) > 20:
        raise UsageError(f"{OVERHEAD_VARIABLE}: {brief(overhead)}, needs a number of bytes")
    return PlacementOptions(
        parse_peer_layers(gpu_layers, "--gpu-layers"),
        parse_split(tensor_split, "--tensor-split"),
        main_gpu,
        cast("Literal['layer', 'none']", split_mode or "layer"),
        spread,
        RESERVE_NBYTES + int(overhead),
        capped=True,
        op_offload=op_offload,
        kv_offload=kv_offload is not False,
    )


def set_implementation(name: ImplementationName | None) -> None:
    """Open devices with an implementation, also in processes that a server starts."""
    if name is not None:
        os.environ[IMPLEMENTATION_VARIABLE] = name


def _make_settings(
    num_ctx: Context = None,
    device: Devices = None,
    gpu_layers: GpuLayers = None,
    tensor_split: TensorSplit = None,
    main_gpu: MainGpu = None,
    split_mode: SplitMode = None,
    op_offload: OpOffload = None,
    kv_offload: KvOffload = None,
    list_devices: ListDevices = False,
    profile: Profile = "full",
    implementation: Implementation = None,
    kv: Cache = "f16",
    exact: Exact = False,
    coarse: Coarse = False,
    lora: Loras = None,
    lora_scaled: ScaledLoras = None,
    control_vector: ControlVectors = None,
    control_vector_scaled: ScaledControlVectors = None,
    control_layers: ControlLayers = None,
    imports: Imports = None,
    debug: Debug = False,
    mmproj: Mmproj = None,
) -> ModelSettings:
    # An option of text, so that its errors are those of `/set parameter`.
    positions = None if num_ctx is None else int(_CONTEXT.number(num_ctx, _CONTEXT.option))
    adapters = AdapterSettings(
        _parse_scaled("--lora-scaled", lora, lora_scaled),
        _parse_scaled("--control-vector-scaled", control_vector, control_vector_scaled),
        control_layers,
    )
    set_implementation(implementation)
    if exact and coarse:
        raise UsageError("--exact keeps activations in f32, --coarse rounds them; give one")
    names = split_names(device)
    return ModelSettings(
        names[0] if len(names) == 1 else None,
        profile,
        kv,
        positions,
        exact=exact,
        adapters=adapters,
        coarse=coarse,
        debug=debug,
        mmproj=mmproj,
        devices=names if len(names) > 1 else (),
        placement=make_placement(
            names, gpu_layers, tensor_split, main_gpu, split_mode, op_offload, kv_offload
        ),
    )


def split_names(devices: str | None) -> tuple[str, ...]:
    """Return the names of devices in a text such as ``vulkan:0,cpu``."""
    if devices is None:
        return ()
    return tuple(name.strip() for name in devices.split(",") if name.strip()) or (devices,)


def _parse_scaled(
    option: str, plain: list[Path] | None, scaled: list[str] | None
) -> Sequence[Scaled]:
    """Return files with their scales, those without a scale first."""
    pairs = [(path, 1.0) for path in plain or []]
    for text in scaled or []:
        # From the right: a path on Windows begins with a letter and a colon.
        path, _, scale = text.rpartition(":")
        try:
            number = float(scale)
        except ValueError:
            number = math.nan
        if not path or not math.isfinite(number):
            raise UsageError(f"{option}: {text!r}, needs a file and a scale, such as FILE:0.5")
        pairs.append((Path(path), number))
    return [(_require_file(path), scale) for path, scale in pairs]


def _require_file(path: Path) -> Path:
    from wgpu_backend.cli.names import require_file

    try:
        return require_file(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None


def with_model_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """Decorate a command: replace its argument `settings` by the options of `ModelSettings`."""
    return replace_argument(command, "settings", _make_settings)


def with_answer_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """Decorate a command: replace its argument `parameters` by an option for each parameter."""
    return replace_argument(command, "parameters", parse_parameters, parameter_options())


def with_option_groups(
    **groups: Callable[..., object],
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Decorate a command: replace arguments by the options of dataclasses.

    Parameters
    ----------
    groups : dataclasses
        Dataclasses by argument; their fields are the options.
    """

    def decorate(command: Callable[..., Result]) -> Callable[..., Result]:
        for place, group in groups.items():
            command = replace_argument(command, place, group)
        return command

    return decorate


def replace_argument(
    command: Callable[..., Result],
    place: str,
    make: Callable[..., object],
    parts: Sequence[inspect.Parameter] | None = None,
) -> Callable[..., Result]:
    """Wrap a command so that options replace one argument, which is made from their values.

    Parameters
    ----------
    place : str
        Name of the replaced argument.
    make : callable
        Function or dataclass that makes the argument.
    parts : sequence of Parameter or None
        The options; None for the arguments of `make`.
    """
    # Annotations are strings in these modules, and typer needs the objects.
    declared = inspect.signature(make, eval_str=True).parameters.values()
    options = list(declared) if parts is None else parts
    own = inspect.signature(command, eval_str=True).parameters
    offered = [p for p in own.values() if p.name != place]
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    # Before the command's keyword-only options: the order here is the order of the help.
    at = next((i for i, p in enumerate(offered) if p.kind == keyword_only), len(offered))
    offered[at:at] = options

    @wraps(command)
    def with_options(**given: object) -> Result:
        value = make(**{part.name: given.pop(part.name) for part in options})
        return command(**given, **{place: value})

    # Typer reads the options of a command from its signature.
    with_options.__signature__ = inspect.Signature(offered)  # pyright: ignore[reportAttributeAccessIssue]
    with_options.__annotations__ = {p.name: p.annotation for p in offered}
    return with_options
