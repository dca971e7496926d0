#!/usr/bin/env python3
"""Fetch naga, the shader compiler of wgpu, with its Metal and HLSL back ends.

wgpu has these two on macOS and Windows alone. An npm package has a WebAssembly build of them, which
Node runs anywhere. Where npm is missing or fetches nothing, the script says so and ends well: the
tests that need naga are then skipped.
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
