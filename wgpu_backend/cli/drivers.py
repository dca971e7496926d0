"""Advice on the driver packages of this machine."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

_MESA = {
    "debian": "apt install mesa-vulkan-drivers libvulkan1",
    "fedora": "dnf install mesa-vulkan-drivers vulkan-loader",
    "rhel": "dnf install mesa-vulkan-drivers vulkan-loader",
    "suse": "zypper install libvulkan1 libvulkan_lvp",
    "arch": "pacman -S vulkan-icd-loader vulkan-swrast",
    "alpine": "apk add mesa-vulkan-swrast vulkan-loader",
}
# Libraries that NVIDIA's driver loads for Vulkan, even without a display.
_NVIDIA_LIBRARIES = {
    "debian": "apt install libvulkan1 libx11-6 libxext6",
    "fedora": "dnf install vulkan-loader libX11 libXext",
    "rhel": "dnf install vulkan-loader libX11 libXext",
    "suse": "zypper install libvulkan1 libX11-6 libXext6",
    "arch": "pacman -S vulkan-icd-loader libx11 libxext",
}
_NVIDIA = Path("/proc/driver/nvidia/version")


def suggest_driver() -> str:
    """Return the advice which packages provide a GPU driver on this machine."""
    system = platform.system()
    if system != "Linux":
        return f"the graphics driver of {system} brings one, update it"
    # The kernel module is loaded, so only libraries can be missing; containers often lack them.
    if _NVIDIA.exists():
        command = _select(_NVIDIA_LIBRARIES) or "the Vulkan loader, libX11, libXext"
        container = "NVIDIA_DRIVER_CAPABILITIES=all in a container"
        return f"NVIDIA's driver is here and needs: {command}; {container}"
    return f"to get one: {_select(_MESA) or 'install a Vulkan driver, Mesa for example'}"


def _select(commands: Mapping[str, str]) -> str:
    """Return the command for this Linux distribution; empty for an unknown one."""
    return next((commands[name] for name in _distributions() if name in commands), "")


def _distributions() -> Sequence[str]:
    """Return the ids of this Linux distribution and of those it derives from."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ()
    words = f"{release.get('ID', '')} {release.get('ID_LIKE', '')}"
    # openSUSE's ids are opensuse-leap and opensuse-tumbleweed, and its ID_LIKE names suse.
    return words.replace("opensuse", "suse").split()
