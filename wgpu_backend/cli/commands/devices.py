"""`wgpu-backend devices`: the devices of this machine."""

from __future__ import annotations

from wgpu_backend.cli.device_table import print_devices
from wgpu_backend.cli.options import Debug, Json


def devices(as_json: Json = False, debug: Debug = False) -> None:
    """List the devices of this machine, best first."""
    print_devices(as_json=as_json)
