#!/usr/bin/env python3
"""Make sure that this machine has a GPU driver that the tests can use.

A machine with a Vulkan, Metal or D3D12 adapter is left as it is. On Debian and Ubuntu, a machine
without one gets Mesa's software rasteriser lavapipe, on Debian 12 from backports (its own Mesa is
older than what the project is developed on). The apt source for backports is this machine's own
source with the suite's name changed. Where nothing can be installed, the script says what to
install and ends well: the tests then run on what there is.

With ``--second FOLDER`` it also fetches SwiftShader, a second and unrelated Vulkan driver, out of
Debian's ``chromium-common`` package, without installing that.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

OLDEST_MESA = 25
SOURCES = Path("/etc/apt")
BACKPORTS_FILE = SOURCES / "sources.list.d" / "wgpu-backend-backports.sources"
DRIVER_PACKAGES = ("mesa-vulkan-drivers", "libvulkan1")
# What the one-line format calls the fields of the deb822 format.
APT_OPTIONS = {"signed-by": "Signed-By", "arch": "Architectures", "trusted": "Trusted"}
SECOND_FILES = ("libvk_swiftshader.so", "vk_swiftshader_icd.json")

# In a process of its own: a broken driver may end the process that loads it.
PROBE = """
import json, wgpu
print(json.dumps([dict(a.info) for a in wgpu.gpu.enumerate_adapters_sync()]))
"""


class Adapter(NamedTuple):
    """What wgpu tells about one adapter."""

    api: str
    name: str
    driver: str

    @property
    def is_current(self) -> bool:
        """Whether this is a native driver, and if it is lavapipe, one new enough."""
        mesa = re.search(r"Mesa (\d+)", self.driver)
        old = "llvmpipe" in self.name and mesa is not None and int(mesa[1]) < OLDEST_MESA
        return self.api in ("Vulkan", "Metal", "D3D12") and not old

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.name, self.driver, self.api)))


def say(line: str) -> None:
    """Print one line at once, so that it stands before the output of what is run next."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def adapters() -> list[Adapter]:
    """Return the adapters that wgpu sees, none if looking fails."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=120, check=True
        )
        found = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        return []
    return [Adapter(a["backend_type"], a["device"], a["description"]) for a in found]


def backports_source(text: str, codename: str) -> str | None:
    """Return a deb822 source for backports made from a machine's own source, None if it has none.

    Parameters
    ----------
    text : str
        An apt source file, in the deb822 or in the one-line format.
    codename : str
        The release's name, such as ``bookworm``.
    """
    for fields in _deb822_stanzas(text) + _one_line_stanzas(text):
        if "deb" in fields["Types"].split() and codename in fields["Suites"].split():
            fields |= {"Types": "deb", "Suites": f"{codename}-backports"}
            return "".join(f"{key}: {value}\n" for key, value in fields.items())
    return None


def _deb822_stanzas(text: str) -> list[dict[str, str]]:
    text = re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE)
    field = re.compile(r"^([\w-]+):(.*(?:\n[ \t].*)*)", re.MULTILINE)
    stanzas = [
        {m[1]: m[2].strip() for m in field.finditer(stanza)}
        for stanza in re.split(r"\n\s*\n", text)
    ]
    return [fields for fields in stanzas if {"Types", "URIs", "Suites"} <= fields.keys()]


def _one_line_stanzas(text: str) -> list[dict[str, str]]:
    pattern = r"^(deb(?:-src)?)\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+(.+)$"
    return [
        {"Types": m[1], "URIs": m[3], "Suites": m[4], "Components": m[5]} | _options(m[2] or "")
        for m in re.finditer(pattern, text, re.MULTILINE)
    ]


def _options(text: str) -> dict[str, str]:
    pairs = (option.partition("=") for option in text.split())
    return {
        APT_OPTIONS[key]: value.replace(",", " ") for key, _, value in pairs if key in APT_OPTIONS
    }


def privilege() -> list[str] | None:
    """Return the words to put before a command that needs root, None if there is no way."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") is None:
        return None
    if sys.stdin.isatty():
        return ["sudo"]
    asks = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode
    return None if asks else ["sudo", "-n"]


class Apt:
    """apt-get with the privileges this user has; every step tells whether it worked."""

    def __init__(self, root: list[str]) -> None:
        self.root = root

    def run(self, *words: str) -> bool:
        """Run ``apt-get`` quietly; its output is shown only when it fails."""
        apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y"]
        options = ["-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=3"]
        return _quietly([*self.root, *apt, *options, *words])

    def write(self, path: Path, text: str) -> bool:
        """Write a file that only root may write."""
        command = [*self.root, "tee", str(path)]
        return subprocess.run(command, input=text.encode(), capture_output=True).returncode == 0

    def install_driver(self) -> bool:
        """Install lavapipe, from backports where the release's own is too old."""
        suite = self.enable_backports()
        self.run("update")
        install = ("install", "--no-install-recommends", *DRIVER_PACKAGES)
        return bool(suite and self.run("-t", suite, *install)) or self.run(*install)

    def enable_backports(self) -> str | None:
        """Add the backports suite on Debian 12; return its name, None where it is not wanted."""
        release = platform.freedesktop_os_release()
        codename = release.get("VERSION_CODENAME", "")
        if (release.get("ID"), codename) != ("debian", "bookworm"):
            return None
        files = [*SOURCES.glob("sources.list.d/*.sources"), *SOURCES.glob("sources.list.d/*.list")]
        for path in filter(Path.is_file, [*sorted(files), SOURCES / "sources.list"]):
            source = backports_source(path.read_text(), codename)
            if source and self.write(BACKPORTS_FILE, source):
                return f"{codename}-backports"
        return None


def _quietly(command: list[str], cwd: str | None = None) -> bool:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        say((done.stderr or done.stdout).strip())
    return done.returncode == 0


def ensure_driver() -> None:
    """Leave the machine with a usable driver if that can be had, and name what the tests get."""
    found = adapters()
    if not any(adapter.is_current for adapter in found) and shutil.which("apt-get"):
        root = privilege()
        if root is not None:
            say("GPU driver: none that is current; installing Mesa's lavapipe …")
            Apt(root).install_driver()
            found = adapters()
    names = "; ".join(str(adapter) for adapter in found)
    say(f"GPU driver: {names or 'none, tests that need one are skipped'}")
    if not any(adapter.is_current for adapter in found):
        say(f"GPU driver: for a current one, as root: apt-get install {' '.join(DRIVER_PACKAGES)}")


def fetch_second(folder: Path) -> None:
    """Put SwiftShader's library and its description for the Vulkan loader into ``folder``."""
    if (folder / SECOND_FILES[1]).is_file():
        return
    if not (shutil.which("apt-get") and _unpack_second(folder)):
        say("Second driver: SwiftShader could not be fetched, its tests are left out")


def _unpack_second(folder: Path) -> bool:
    with tempfile.TemporaryDirectory() as temporary:
        if not _download_second(temporary):
            return False
        package = next(Path(temporary).glob("*.deb"))
        if not _quietly(["dpkg-deb", "-x", str(package), temporary]):
            return False
        files = [Path(temporary) / "usr" / "lib" / "chromium" / name for name in SECOND_FILES]
        if not all(file.is_file() for file in files):
            return False
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(file, folder)
    return True


def _download_second(folder: str) -> bool:
    download = ["apt-get", "-q", "download", "chromium-common"]
    if _quietly(download, cwd=folder):
        return True
    # The package lists are missing, or older than the archive.
    root = privilege()
    return root is not None and Apt(root).run("update") and _quietly(download, cwd=folder)


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--second", type=Path, metavar="FOLDER", help="fetch SwiftShader there")
    second: Path | None = parser.parse_args().second
    ensure_driver()
    if second:
        fetch_second(second)


if __name__ == "__main__":
    main()
