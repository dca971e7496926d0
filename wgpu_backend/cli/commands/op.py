"""`wgpu-backend op …`: tools for writing ops."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wgpu_backend.cli.options import Debug, Device, Json

op_app = typer.Typer(
    help="Check and measure ops and shaders while you write them.", no_args_is_help=True
)

OpFile = Annotated[
    Path, typer.Argument(metavar="PATH", help="Python file that registers ops, or a WGSL file.")
]


@op_app.command()
def check(
    path: OpFile,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Check again whenever a file changes.")
    ] = False,
    device: Device = None,
    debug: Debug = False,
) -> int:
    """Test the ops of a Python file, or compile a WGSL file."""
    from wgpu_backend.cli.op_check import check_file, check_forever

    return (check_forever if watch else check_file)(path, device)


@op_app.command()
def bench(
    path: OpFile,
    mebibytes: Annotated[
        int, typer.Option("--size", min=1, max=1024, metavar="MIB", help="Size of an operand.")
    ] = 16,
    as_json: Json = False,
    device: Device = None,
    debug: Debug = False,
) -> None:
    """Compare the speed of ops with a copy of as many bytes."""
    from wgpu_backend.cli.op_bench import bench_file

    bench_file(path, mebibytes << 20, device, as_json=as_json)
