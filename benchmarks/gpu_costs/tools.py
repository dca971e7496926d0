"""The C compiler and the Mesa drivers that the figures need, and a process that uses them.

RADV's null device compiles for a card that does not exist. It is Mesa's own driver, the system's or
the one unpacked in the folder that the environment variable ``MESA`` names, and `nullgpu.c` as a
Vulkan layer gives it what programs ask a device for. ANV, Intel's driver, has no such device;
`drm_shim.c` answers for the kernel's driver, and the layer does the rest.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OLDEST_MESA = 25
LAYER = "VK_LAYER_gpu_costs_nullgpu"
COMPILERS = ("cc", "gcc", "clang")
# Where drivers tell the Vulkan loader of themselves.
DRIVER_FOLDERS = ("/usr/share", "/etc", "/usr/local/share", "/usr/local/etc")


@dataclass(frozen=True, slots=True)
class IntelGpu:
    """The properties of an Intel GPU that the kernel's driver reports.

    Parameters
    ----------
    device_id : int
        PCI id.
    subslices, units : int
        Subslices (Xe cores), and execution units of each.
    local_memory : bool
        Whether it has memory of its own.
    """

    device_id: int
    subslices: int
    units: int
    local_memory: bool


# Tiger Lake, Arc A770 and Arc B580. The kernel has another driver, xe, for the last one, but ANV is
# content with the answers of i915.
INTEL = {
    "tgl": IntelGpu(0x9A49, 6, 16, False),
    "dg2": IntelGpu(0x56A0, 32, 16, True),
    "bmg": IntelGpu(0xE20B, 20, 8, True),
}
CARD_NBYTES = 64 << 30  # of a file that is a hole


class Missing(Exception):
    """A tool is missing; the message names it and how to get it."""


@dataclass(frozen=True, slots=True)
class Mesa:
    """A Vulkan driver of Mesa.

    Parameters
    ----------
    library : str
        Path, or a name that the dynamic loader finds.
    folder : Path or None
        Of libraries that it needs, where it is not the system's.
    api_version : str
    """

    library: str
    folder: Path | None
    api_version: str


def compiler() -> str:
    """Return the path of a C compiler.

    Raises
    ------
    Missing
        There is none.
    """
    wanted = (os.environ.get("CC", ""), *COMPILERS)
    found = next(filter(None, (shutil.which(name) for name in wanted if name)), None)
    if found is None:
        raise Missing(f"no C compiler ({', '.join(COMPILERS)})")
    return found


def mesa(name: str = "radeon") -> Mesa:
    """Find a driver by the name of its manifest: ``radeon`` or ``intel``.

    Raises
    ------
    Missing
        There is none.
    """
    unpacked = os.environ.get("MESA")
    folders = [Path(unpacked, "usr/share")] if unpacked else [Path(f) for f in DRIVER_FOLDERS]
    for path in _manifests(folders, name):
        icd = json.loads(path.read_text("utf-8"))["ICD"]
        root = Path(unpacked) if unpacked and Path(unpacked) != Path("/") else None
        return _found(icd, root)
    where = f"in {unpacked}" if unpacked else "on the system; MESA=FOLDER names an unpacked one"
    raise Missing(f"no {name} driver of Mesa ({OLDEST_MESA} or newer) {where}")


def _manifests(folders: list[Path], name: str) -> Iterator[Path]:
    """List the manifests of a driver, those for this machine's processor first."""
    machine = platform.machine()
    for folder in folders:
        found = sorted(folder.glob(f"vulkan/icd.d/{name}_icd*.json"))
        yield from sorted(found, key=lambda path: machine not in path.name)


def _found(icd: dict[str, str], root: Path | None) -> Mesa:
    """Return the driver of a manifest; below `root` its library has another path."""
    library, version = icd["library_path"], icd["api_version"]
    if root is None:
        return Mesa(library, None, version)
    found = next(root.glob(f"usr/lib*/**/{Path(library).name}"), None)
    if found is None:
        raise Missing(f"no {Path(library).name} in {root}")
    return Mesa(str(found), found.parent, version)


def environment(work: Path, family: str) -> dict[str, str]:
    """Return the environment of a process that sees only the null device.

    Parameters
    ----------
    work : Path
        A folder of its own; the layer is built there.
    family : str
        As Mesa calls it: navi31, navi21, gfx1201, vega10, polaris10, …; or one of `INTEL`.

    Raises
    ------
    Missing
        A tool is not there, or the layer does not compile.
    """
    intel = INTEL.get(family)
    driver, cc = mesa("intel" if intel else "radeon"), compiler()
    out = work / "out"
    out.mkdir(parents=True)
    icd = _written(work / "icd.json", _icd(driver))
    _written(work / "layers" / "layer.json", _layer(_built(cc, work, "nullgpu")))
    added = {
        "VK_DRIVER_FILES": str(icd),
        "VK_ICD_FILENAMES": str(icd),
        "VK_LAYER_PATH": str(work / "layers"),
        "VK_INSTANCE_LAYERS": LAYER,
        **(_shimmed(cc, work, intel) if intel else {"RADV_FORCE_FAMILY": family}),
        "MESA_SHADER_CACHE_DISABLE": "true",
        "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR", str(work)),
        "GPU_COSTS_OUT": str(out),
    }
    if driver.folder:
        others = os.environ.get("LD_LIBRARY_PATH")
        added["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(driver.folder), others)))
    return {**os.environ, **added}


def _shimmed(cc: str, work: Path, gpu: IntelGpu) -> dict[str, str]:
    """Return an environment in which the kernel seems to have an Intel GPU."""
    macros = {
        "DEVICE_ID": gpu.device_id,
        "SUBSLICES": gpu.subslices,
        "UNITS": gpu.units,
        "LOCAL_MEMORY": int(gpu.local_memory),
    }
    shim = _built(cc, work, "drm_shim", *(f"-D{name}={value}" for name, value in macros.items()))
    card = work / "card"
    with card.open("wb") as file:
        file.truncate(CARD_NBYTES)
    others = os.environ.get("LD_PRELOAD")
    return {
        "GPU_COSTS_CARD": str(card),
        "LD_PRELOAD": " ".join(filter(None, (str(shim), others))),
    }


def _built(cc: str, work: Path, name: str, *more: str) -> Path:
    """Compile a file of this folder to a library."""
    library = work / f"lib{name}.so"
    words = [cc, "-O1", "-shared", "-fPIC", "-pthread", *more, "-o", library, HERE / f"{name}.c"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"{cc} does not build {name}.c: {done.stderr.strip().splitlines()[-1:]}")
    return library


def _icd(driver: Mesa) -> object:
    driver_file = {"library_path": driver.library, "api_version": driver.api_version}
    return {"file_format_version": "1.0.0", "ICD": driver_file}


def _layer(library: Path) -> object:
    layer = {
        "name": LAYER,
        "type": "GLOBAL",
        "library_path": str(library),
        "api_version": "1.3.0",
        "implementation_version": "1",
        "description": "memory for RADV's null device, and what its compiler says",
    }
    return {"file_format_version": "1.1.2", "layer": layer}


def _written(path: Path, what: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(what), "utf-8")
    return path


def run(words: list[str], work: Path, family: str) -> str:
    """Run a module of this folder on the null device, and return its stderr.

    Raises
    ------
    Missing
        A tool is not there, or Mesa is too old.
    RuntimeError
        The process failed.
    """
    words = [sys.executable, "-m", *words]
    env = environment(work, family)
    done = subprocess.run(words, env=env, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    # Mesa prints a message about the missing card.
    lines = (line for line in done.stderr.splitlines() if not line.startswith("ac_"))
    output = "\n".join(dict.fromkeys(lines))
    if done.returncode == MISSING:
        raise Missing(output)
    if done.returncode:
        raise RuntimeError(output or f"{family}: the process ended with {done.returncode}")
    return output


MISSING = 77  # exit status of a process that found a tool missing
