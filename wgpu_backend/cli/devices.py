"""`wgpu-backend devices`: the devices of this machine."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from wgpu_backend.cli.console import answer, human_bytes, note, print_table
from wgpu_backend.cli.options import (
    Debug,
    Json,
)

if TYPE_CHECKING:
    from wgpu_backend.graph.capabilities import DeviceInfo

_PACKAGES = {
    "debian": "apt install mesa-vulkan-drivers libvulkan1",
    "fedora": "dnf install mesa-vulkan-drivers vulkan-loader",
    "rhel": "dnf install mesa-vulkan-drivers vulkan-loader",
    "suse": "zypper install libvulkan1 libvulkan_lvp",
    "arch": "pacman -S vulkan-icd-loader vulkan-swrast",
    "alpine": "apk add mesa-vulkan-swrast vulkan-loader",
}

# Libraries that NVIDIA's driver loads for Vulkan, even without a display.
_BESIDE_NVIDIA = {
    "debian": "apt install libvulkan1 libx11-6 libxext6",
    "fedora": "dnf install vulkan-loader libX11 libXext",
    "rhel": "dnf install vulkan-loader libX11 libXext",
    "suse": "zypper install libvulkan1 libX11-6 libXext6",
    "arch": "pacman -S vulkan-icd-loader libx11 libxext",
}
_NVIDIA = Path("/proc/driver/nvidia/version")


def print_devices(*, as_json: bool) -> None:
    """Print the devices, best first: a table, or JSON with limits and features."""
    from wgpu_backend.device.adapters import Devices

    devices = Devices()
    if as_json:
        answer(json.dumps([asdict(info) for info in devices], indent=2) + "\n")
        return
    columns = ("id", "name", "kind", "API", "driver", "memory")
    print_table(columns, [_row(info) for info in devices], right=("memory",))
    if devices[0].kind == "cpu":
        note(f"no GPU adapter; {driver_hint()}")


def driver_hint() -> str:
    """Return the advice which packages provide a GPU driver on this machine."""
    system = platform.system()
    if system != "Linux":
        return f"the graphics driver of {system} brings one, update it"
    if _NVIDIA.exists():
        command = _of_distribution(_BESIDE_NVIDIA) or "the Vulkan loader, libX11, libXext"
        container = "NVIDIA_DRIVER_CAPABILITIES=all in a container"
        return f"NVIDIA's driver is here and needs: {command}; {container}"
    command = _of_distribution(_PACKAGES)
    return f"to get one: {command or 'install a Vulkan driver, Mesa for example'}"


def _of_distribution(commands: Mapping[str, str]) -> str:
    return next((commands[name] for name in _distribution() if name in commands), "")


def _distribution() -> Sequence[str]:
    """Return the ids of this Linux distribution and of those it derives from."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ()
    words = f"{release.get('ID', '')} {release.get('ID_LIKE', '')}"
    return words.replace("opensuse", "suse").split()


def _row(info: DeviceInfo) -> tuple[str, ...]:
    memory = human_bytes(info.total_memory) if info.total_memory else ""
    return info.id, info.name, info.kind, info.api, info.driver, memory


def devices(as_json: Json = False, debug: Debug = False) -> None:
    """List the devices of this machine, best first."""
    print_devices(as_json=as_json)
