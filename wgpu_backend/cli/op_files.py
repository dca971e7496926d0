"""What a file of a user holds: ops, read anew each time, or a shader."""

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
    """A Python file that registers ops; reading it again replaces them.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ops: list[Op[Any]] = []

    def read(self) -> list[Op[Any]]:
        """Import the file and give the ops it registers.

        Raises
        ------
        PluginError
            It cannot be imported; the message shows file, line and the line itself.
        UsageError
            It registers no op.
        """
        self.forget()
        before = set(REGISTRY)
        try:
            plugins.execute(self.path, MODULE)
        finally:
            sys.modules.pop(MODULE, None)
            self.ops = [made for name, made in REGISTRY.items() if name not in before]
        if not self.ops:
            raise UsageError(f"{self.path}: it registers no op, needs a function under @op")
        return self.ops

    def forget(self) -> None:
        """Take the file's ops out of the registry, and read shaders anew."""
        for made in self.ops:
            testing.forget(made)
        self.ops = []
        module.forget()


def existing(path: Path, *suffixes: str) -> Path:
    """`path`, if it is a file of one of these kinds.

    Raises
    ------
    UsageError
        It is not there, or of another kind.
    """
    if not path.is_file():
        raise UsageError(f"{path}: {'a directory' if path.is_dir() else 'no such file'}")
    if path.suffix not in suffixes:
        raise UsageError(f"{path}: the name ends in {path.suffix!r}, needs {' or '.join(suffixes)}")
    return path
