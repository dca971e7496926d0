"""A user's file of ops, which can be imported repeatedly."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from wgpu_backend import testing
from wgpu_backend.cli.failures import UsageError
from wgpu_backend.device.wgsl import module
from wgpu_backend.ops import plugins
from wgpu_backend.ops.op import REGISTRY, Op

MODULE = "wgpu_backend_op_file"


class OpFile:
    """A Python file that registers ops; importing it again replaces them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ops: list[Op[Any]] = []

    def read(self) -> list[Op[Any]]:
        """Import the file and return the ops that it registers.

        Raises
        ------
        PluginError
            It cannot be imported; the message shows the file, the line number and the line.
        UsageError
            It registers no op.
        """
        self.forget()
        before = set(REGISTRY)
        try:
            plugins.execute(self.path, MODULE)
        finally:
            # A module that stayed would be found by the next import, with its old code.
            sys.modules.pop(MODULE, None)
            # Also after an error in the middle of the file, so that `forget` removes what came
            # before it.
            self.ops = [op for name, op in REGISTRY.items() if name not in before]
        if not self.ops:
            raise UsageError(f"{self.path}: it registers no op, needs a function under @op")
        return self.ops

    def forget(self) -> None:
        """Remove the file's ops from the registry, and clear the cache of shaders."""
        for op in self.ops:
            testing.forget(op)
        self.ops = []
        module.forget()


def require_op_file(path: Path, *suffixes: str) -> Path:
    """Return `path` if it is an existing file with one of the suffixes.

    Raises
    ------
    UsageError
        It does not exist, or has another suffix.
    """
    if not path.is_file():
        raise UsageError(f"{path}: {'a directory' if path.is_dir() else 'no such file'}")
    if path.suffix not in suffixes:
        raise UsageError(f"{path}: the name ends in {path.suffix!r}, needs {' or '.join(suffixes)}")
    return path
