#!/usr/bin/env python3
"""Fetch naga, the shader compiler of wgpu, with its Metal and HLSL back ends.

wgpu has these two on macOS and Windows alone. An npm package has a WebAssembly build of them, which
Node runs anywhere. Where npm is missing or fetches nothing, the script says so and ends well: the
tests that need naga are then skipped.

That build does not know matrix units. Debian's packages cargo and librust-naga-dev (29 or newer, so
far in unstable) do: where they are installed, tests/naga.rs is built with them as FOLDER/naga.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

LEAST_NAGA = 29  # the first with cooperative matrices of f16
PACKAGE = "wgsl-wasm-transpiler-bundler@0.0.1"  # of naga 25
SUMS = {
    "wgsl_wasm_transpiler_bg.wasm": (
        "4e36513e19c045dfd1bf2dc51eb4bd83d4d9269df0094a191602f737fd720baa"
    ),
    "wgsl_wasm_transpiler_bg.js": (
        "abcf902c7be889f11a06acfc0214f20b2c3c0e56721e716ad85b28504ffa167d"
    ),
}


def fetched(folder: Path) -> str:
    """Put the files into a folder; why they are not there, or nothing."""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed"
    with tempfile.TemporaryDirectory() as name:
        words = [npm, "pack", "--silent", PACKAGE]
        subprocess.run(words, cwd=name, capture_output=True, check=False)
        found = list(Path(name).glob("*.tgz"))
        if not found:
            return f"npm does not give {PACKAGE}"
        files = dict(_members(found[0]))
    if {n: hashlib.sha256(data).hexdigest() for n, data in files.items()} != SUMS:
        return f"{PACKAGE} is another than the one that was looked at"
    folder.mkdir(parents=True, exist_ok=True)
    for file_name, data in files.items():
        (folder / file_name).write_bytes(data)
    return ""


CRATES = Path("/usr/share/cargo/registry")  # where Debian's packages put sources
MANIFEST = """[package]
name = "naga-check"
version = "0.1.0"
edition = "2021"

[[bin]]
name = "naga-check"
path = "{source}"

[dependencies]
naga = {{ version = "*", features = ["wgsl-in", "spv-out", "msl-out"] }}
"""
CONFIG = """[source.crates-io]
replace-with = "debian"

[source.debian]
directory = "{crates}"
"""


def built(folder: Path) -> str:
    """Build the program that checks matrix units; why it is not there, or nothing."""
    cargo = shutil.which("cargo")
    newest = max(
        (int(p.name.split("-")[1].split(".")[0]) for p in CRATES.glob("naga-[0-9]*")), default=0
    )
    if cargo is None or newest < LEAST_NAGA:
        found = f"{CRATES} has naga {newest}" if newest else "librust-naga-dev is not installed"
        return f"needs cargo and naga {LEAST_NAGA}: {found if cargo else 'cargo is not installed'}"
    source = Path(__file__).resolve().parents[1] / "tests" / "naga.rs"
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "Cargo.toml").write_text(MANIFEST.format(source=source), encoding="utf-8")
        (place / ".cargo").mkdir()
        (place / ".cargo" / "config.toml").write_text(
            CONFIG.format(crates=CRATES), encoding="utf-8"
        )
        words = [cargo, "build", "--quiet", "--offline"]
        done = subprocess.run(words, cwd=name, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"cargo: {done.stderr.strip()[-1000:]}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(place / "target" / "debug" / "naga-check", folder / "naga")
    return ""


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        for name in SUMS:
            member = archive.extractfile(f"package/{name}")
            yield name, member.read() if member else b""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if not all((folder / name).exists() for name in SUMS) and (reason := fetched(folder)):
        sys.stdout.write(f"{reason}; tests of naga's Metal and HLSL back ends are skipped\n")
    if not (folder / "naga").exists() and (reason := built(folder)):
        sys.stdout.write(f"{reason}; tests of naga's matrix units are skipped\n")
