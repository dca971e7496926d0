"""Plugins: ops, architectures and backend kinds of installed packages and of the user's files.

An installed package declares its plugins as entry points in its metadata::

    [project.entry-points."wgpu_backend.ops"]
    snake = "my_package.ops"                  importing the module registers the op

    [project.entry-points."wgpu_backend.architectures"]
    story-parallel = "my_package.model"

    [project.entry-points."wgpu_backend.backends"]
    remote = "my_package.backend"

Plugins are imported once: when a name is not known, or when all are needed. Opening a device needs
all ops, since an op may bring a fusion rule.
A package that cannot be imported is one warning, and the others work. A file that is no package is
imported by its path (`import_file`), and what is wrong with it is an error.
"""

from __future__ import annotations

import inspect
import re
import sys
import traceback
import warnings
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from operator import attrgetter
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Literal

from wgpu_backend.errors import DeviceError, OptionError, PluginError

Group = Literal["wgpu_backend.ops", "wgpu_backend.architectures", "wgpu_backend.backends"]
_done: set[EntryPoint] = set()
# "op NAME", "architecture NAME", "backend NAME", in the order of registration.
_registered: list[str] = []
_files: dict[Path, ModuleType] = {}
# What Python says of a call that does not fit, and of a class that lacks methods.
_NAMED = re.compile(r"(?P<function>[\w.]+)\(\) |Can't instantiate abstract class (?P<class>\w+) ")


class PluginWarning(UserWarning):
    """A warning that an installed package has a plugin that could not be imported."""


def load(group: Group, name: str | None = None) -> None:
    """Import the plugins of a group, each at most once.

    Parameters
    ----------
    name : str or None
        Only what goes by this name; None for all of the group.
    """
    found = entry_points(group=group) if name is None else entry_points(group=group, name=name)
    for point in found:
        # Marked before it is imported: a plugin may look up ops while it registers its own.
        if point not in _done:
            _done.add(point)
            _load(point)


def names(group: Group) -> list[str]:
    """Return the names of a group's plugins, without importing any."""
    return sorted({point.name for point in entry_points(group=group)})


def _load(point: EntryPoint) -> None:
    before = len(_registered)
    try:
        point.load()
    # Whatever a foreign module raises on import.
    except Exception as error:
        package = point.dist.name if point.dist else point.value
        warnings.warn(
            f"plugin {package}: {point.group} {point.name} = {point.value} cannot be used, "
            f"{type(error).__name__}: {error}",
            PluginWarning,
            stacklevel=3,
        )
    finally:
        # Registered by modules that the file imported, not by the file.
        del _registered[before:]


def note(what: str) -> None:
    """Remember that something was registered, to detect files that register nothing.

    Registrations of the package itself do not count, though they often happen while a user's file
    first needs them.

    Parameters
    ----------
    what : str
        Kind and name: ``op snake``.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] the function that registers
    registrar = frame.f_globals
    while frame.f_back and frame.f_globals is registrar and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if not str(frame.f_globals.get("__name__")).startswith("wgpu_backend."):
        _registered.append(what)


def import_file(path: str | Path) -> ModuleType:
    """Import a Python file that registers ops, architectures or backend kinds.

    The file can import modules of its folder, as with ``python FILE``. A file that was imported
    before is not run again.

    Raises
    ------
    PluginError
        There is no such file, it is no Python, it fails, or it registers nothing; the message
        says where.
    """
    path = Path(path)
    _require_python(path)
    whole = path.resolve()
    if whole not in _files:
        before = len(_registered)
        module = execute(path, f"wgpu_backend_file_{len(_files)}_{path.stem}")
        if len(_registered) == before:
            del sys.modules[module.__name__]
            raise PluginError(
                f"{path}: it registers nothing, needs a class under @wgpu_backend.architecture(…) "
                "or a function under @wgpu_backend.op"
            )
        _files[whole] = module
    return _files[whole]


def imported_files() -> list[Path]:
    """Return the files that `import_file` has imported."""
    return list(_files)


def find_place(error: BaseException) -> str | None:
    """Return the place in an imported file that an error is about: ``file:line``.

    That is the line that raised it. For an error raised elsewhere it is the class that lacks an
    attribute, or the function or class that was called wrongly, as the error has it; or else the
    innermost line that was running.

    Returns
    -------
    str or None
        None for an error that no imported file has to do with.
    """
    frames = [
        f"{f.f_code.co_filename}:{line}" if _is_imported(f.f_globals.get("__name__")) else None
        for f, line in traceback.walk_tb(error.__traceback__)
    ]
    if frames and frames[-1]:
        return frames[-1]
    return _definition(_find_culprit(error)) or next((f for f in reversed(frames) if f), None)


def describe_mistake(error: BaseException) -> str | None:
    """Describe a mistake in an imported file, with its line: ``file:line: TypeError: …``.

    Returns
    -------
    str or None
        None for an error that no imported file has to do with, says its line itself, or is about
        what was asked for or the device.
    """
    if isinstance(error, OptionError | PluginError | DeviceError | MemoryError):
        return None
    place = find_place(error)
    return place and f"{place}: {type(error).__name__}: {error}"


def _find_culprit(error: BaseException) -> object:
    """Return the class or function of an imported file that an error names."""
    if isinstance(error, AttributeError):
        kind = error.obj if isinstance(error.obj, type) else type(error.obj)
        return next((base for base in kind.__mro__ if _is_imported(base.__module__)), None)
    found = _NAMED.match(str(error)) if isinstance(error, TypeError) else None
    name = (found["function"] or found["class"]) if found else ""
    for module in _files.values() if name else ():
        with suppress(AttributeError):
            one = attrgetter(name)(module)
            if one.__module__ == module.__name__:
                return one
    return None


def _is_imported(name: str | None) -> bool:
    return any(module.__name__ == name for module in _files.values())


def _definition(one: object) -> str | None:
    """Return ``file:line`` of a class or function; the file may have changed since."""
    if not isinstance(one, type | FunctionType):
        return None
    file = sys.modules[one.__module__].__file__
    try:
        return f"{file}:{inspect.getsourcelines(one)[1]}"
    except (OSError, TypeError):
        return file


def _require_python(path: Path) -> None:
    if path.is_dir():
        raise PluginError(f"{path}: a directory, needs a Python file")
    if not path.exists():
        raise PluginError(f"{path}: no such file")
    if not path.is_file():
        raise PluginError(f"{path}: not a regular file, needs a Python file")
    if path.suffix != ".py":
        raise PluginError(f"{path}: the name ends in {path.suffix!r}, needs .py")


def execute(path: Path, name: str) -> ModuleType:
    """Run a Python file as a module of this name, reading it from disk again.

    Raises
    ------
    PluginError
        The file fails; the message shows file, line and the line itself.
    """
    spec = spec_from_file_location(name, path)
    assert isinstance(spec, ModuleSpec)
    module = module_from_spec(spec)
    # Annotations of dataclasses are looked up there.
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        # Not through the loader: it would take compiled bytes that are as old as the second.
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        raise _explain(path, error) from (None if isinstance(error, SyntaxError) else error)
    finally:
        sys.path.remove(str(path.parent.resolve()))
    return module


def _explain(path: Path, error: Exception) -> PluginError:
    """Return an error, with the line, for an imported file that raised."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        text = (error.text or "").rstrip("\n")
        gutter = f"{error.lineno} │ "
        caret = " " * (len(gutter) + (error.offset or 1) - 1) + "^"
        where = f"{error.filename or path}:{error.lineno}"
        return PluginError(f"{where}: {error.msg}\n{gutter}{text}\n{caret}")
    what = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    mine = next((f for f in reversed(frames) if f.filename == str(path)), None)
    if mine is None or mine.lineno is None:
        return PluginError(f"{path}: {what}")
    return PluginError(f"{path}:{mine.lineno}: {what}\n{mine.lineno} │ {mine.line}")
