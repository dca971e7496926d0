"""What a file of a user holds: ops, read anew each time, or a shader."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

from wgpu_backend import shader, testing
from wgpu_backend.cli.failures import UsageError
from wgpu_backend.errors import BackendError
from wgpu_backend.ops.op import REGISTRY, Op

MODULE = "wgpu_backend_op_file"


class OpFileError(BackendError):
    """A Python file of ops that cannot be imported."""


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
        OpFileError
            It cannot be imported; the message shows file, line and the line itself.
        UsageError
            It registers no op.
        """
        self.forget()
        before = set(REGISTRY)
        try:
            _execute(self.path)
        finally:
            self.ops = [made for name, made in REGISTRY.items() if name not in before]
        if not self.ops:
            raise UsageError(f"{self.path}: it registers no op, needs a function under @op")
        return self.ops

    def forget(self) -> None:
        """Take the file's ops out of the registry, and read shaders anew."""
        for made in self.ops:
            testing.forget(made)
        self.ops = []
        shader.forget()


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


def _execute(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    sys.path.insert(0, str(path.parent.resolve()))  # as `python PATH` has it
    try:
        # Not through the loader: it would take compiled bytes that are as old as the second.
        code = compile(path.read_bytes(), str(path), "exec")
        exec(code, module.__dict__)
    except SyntaxError as error:
        raise OpFileError(_syntax(path, error)) from None
    except Exception as error:  # whatever a file does when it is imported
        raise OpFileError(_place(path, error)) from error
    finally:
        sys.path.pop(0)
        del sys.modules[MODULE]


def _syntax(path: Path, error: SyntaxError) -> str:
    line, column = error.lineno or 1, error.offset or 1
    text = (error.text or "").rstrip("\n")
    gutter = f"{line} │ "
    caret = " " * (len(gutter) + column - 1) + "^"
    return f"{error.filename or path}:{line}: {error.msg}\n{gutter}{text}\n{caret}"


def _place(path: Path, error: Exception) -> str:
    what = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    mine = next((f for f in reversed(frames) if f.filename == str(path)), None)
    if mine is None or mine.lineno is None:
        return f"{path}: {what}"
    return f"{path}:{mine.lineno}: {what}\n{mine.lineno} │ {mine.line}"
