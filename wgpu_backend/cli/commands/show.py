"""`wgpu-backend show`: the facts and contents of a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer

from wgpu_backend.cli.console import human_bytes, print_facts, print_table, print_text
from wgpu_backend.cli.failures import UsageError, one_line
from wgpu_backend.cli.names import BUNDLED, exists, find_model
from wgpu_backend.cli.options import (
    Cache,
    Context,
    Debug,
    Devices,
    GpuLayers,
    Imports,
    Json,
    KvOffload,
    MainGpu,
    Mmproj,
    Model,
    OpOffload,
    Parallel,
    SplitMode,
    TensorSplit,
    make_placement,
    split_names,
)
from wgpu_backend.cli.store import (
    find_stored,
    format_modelfile,
    format_parameters,
    format_system,
)

if TYPE_CHECKING:
    from wgpu_backend.files.gguf.config import Value
    from wgpu_backend.files.gguf.reader import GGUFFile


def show(
    model: Model,
    as_json: Json = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List the tensors.")] = False,
    template: Annotated[bool, typer.Option("--template", help="Print the chat template.")] = False,
    modelfile: Annotated[
        bool, typer.Option("--modelfile", help="Print the Modelfile of a stored model.")
    ] = False,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Print the parameters of a stored model.")
    ] = False,
    system: Annotated[
        bool, typer.Option("--system", help="Print the system message of a stored model.")
    ] = False,
    license_: Annotated[bool, typer.Option("--license", help="Print the license.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Print all metadata and tensors.")
    ] = False,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Print the device of each layer with the memory and time that is predicted; "
            "nothing is loaded.",
        ),
    ] = False,
    device: Devices = None,
    num_ctx: Context = None,
    parallel: Parallel = 1,
    kv: Cache = "f16",
    gpu_layers: GpuLayers = None,
    tensor_split: TensorSplit = None,
    main_gpu: MainGpu = None,
    split_mode: SplitMode = None,
    op_offload: OpOffload = None,
    kv_offload: KvOffload = None,
    mmproj: Mmproj = None,
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """Show the contents of a model, a GGUF file or a folder."""
    flags = {
        "tensors": tensors,
        "template": template,
        "modelfile": modelfile,
        "parameters": parameters,
        "system": system,
        "license": license_,
        "verbose": verbose,
        "plan": plan,
    }
    parts = [name for name, given in flags.items() if given]
    if len(parts) > 1:
        both = " and ".join(f"--{each}" for each in parts)
        raise UsageError(f"show: {both}, needs at most one of them")
    part = parts[0] if parts else ""
    asked = (gpu_layers, tensor_split, main_gpu, split_mode, op_offload, kv_offload)
    if part == "plan":
        from wgpu_backend.cli.plan import print_plan

        names = split_names(device)
        options = make_placement(names, *asked)
        path = find_model(model)
        # A stored model is loaded with its own context and tower.
        stored = None if exists(model) or model in BUNDLED else find_stored(model)
        if stored is not None:
            own = stored.parameters.get("num_ctx")
            num_ctx = str(own) if num_ctx is None and own is not None else num_ctx
            mmproj = mmproj or stored.projector
        print_plan(path, names, options, num_ctx, parallel, kv, mmproj=mmproj, as_json=as_json)
        return
    # Without a plan they would change nothing, and a user would not notice.
    if any(value is not None for value in (*asked, num_ctx, mmproj)):
        raise UsageError("show: options of devices, layers, context and towers need --plan")
    if part in _STORED_PARTS:
        print_text(_STORED_PARTS[part](model))
        return
    from wgpu_backend.cli.model_facts import describe_file
    from wgpu_backend.files.huggingface.folder import open_model_file

    with open_model_file(find_model(model), check_types=False) as file:
        if as_json:
            facts = describe_file(file, tensors=part == "tensors")
            print_text(json.dumps(facts, indent=2) + "\n")
        else:
            _FILE_PARTS[part](file)
    if not part and not as_json:
        _print_stored(model)


def _format_license(name: str) -> str:
    from wgpu_backend.cli.model_facts import find_license

    return find_license(name) + "\n"


def _print_template(file: GGUFFile) -> None:
    from wgpu_backend.cli.model_facts import read_template

    print_text(read_template(file.config) + "\n")


def _print_facts(file: GGUFFile) -> None:
    from wgpu_backend.cli.model_facts import list_facts

    print_facts(list_facts(file))


def _print_stored(name: str) -> None:
    """Print the store's projector, parameters and system message of a model."""
    found = None if exists(name) else find_stored(name)
    if found is None:
        return
    if found.projector is not None:
        from wgpu_backend.cli.model_facts import list_tower_facts
        from wgpu_backend.files.gguf.reader import open_gguf

        print_text("\nprojector\n")
        with open_gguf(found.projector, check_types=False) as tower:
            print_facts(list_tower_facts(tower))
    if found.parameters:
        print_text("\nparameters\n" + format_parameters(name))
    if found.system:
        print_text(f"\nsystem\n{found.system}\n")


def _print_everything(file: GGUFFile) -> None:
    from wgpu_backend.cli.model_facts import TEMPLATE

    _print_facts(file)
    print_text("\n")
    keys = file.config.metadata.items()
    print_facts((key, _format_value(value)) for key, value in keys if key != TEMPLATE)
    print_text("\n")
    _print_tensors(file)


def _format_value(value: Value) -> str:
    """Format a value of a key in a line; only the length for a long one."""
    from wgpu_backend.cli.model_facts import shorten_value

    short = shorten_value(value)
    if short is not None:
        return one_line(str(short))
    unit = "characters" if isinstance(value, str) else "values"
    return f"{len(cast('Sequence[object]', value)):,} {unit}"


def _print_tensors(file: GGUFFile) -> None:
    """Print a line for each tensor."""
    rows = [
        (i.name, i.dtype.name.upper(), " × ".join(map(str, i.shape)), human_bytes(i.nbytes))
        for i in file.tensors.values()
    ]
    print_table(("tensor", "type", "shape", "size"), rows, right=("shape", "size"))


_STORED_PARTS: dict[str, Callable[[str], str]] = {
    "modelfile": format_modelfile,
    "parameters": format_parameters,
    "system": format_system,
    "license": _format_license,
}
_FILE_PARTS: dict[str, Callable[[GGUFFile], None]] = {
    "": _print_facts,
    "tensors": _print_tensors,
    "template": _print_template,
    "verbose": _print_everything,
}
