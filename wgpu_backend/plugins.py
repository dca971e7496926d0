"""What installed packages add: ops, architectures and kinds of backend, by entry points.

A package names in its metadata what it brings and where::

    [project.entry-points."wgpu_backend.ops"]
    snake = "my_package.ops"                  importing the module registers the op

    [project.entry-points."wgpu_backend.architectures"]
    story-parallel = "my_package.model"

    [project.entry-points."wgpu_backend.backends"]
    remote = "my_package.backend"

Nothing is imported before somebody asks for a name that is not known, or for all: then once.
Opening a device asks for all ops, since an op may bring a fusion rule.
A package that cannot be imported is one warning, and the others work.
"""

from __future__ import annotations

import warnings
from importlib.metadata import EntryPoint, entry_points
from typing import Literal

Group = Literal["wgpu_backend.ops", "wgpu_backend.architectures", "wgpu_backend.backends"]
_done: set[EntryPoint] = set()


class PluginWarning(UserWarning):
    """An installed package brings something that could not be imported."""


def load(group: Group, name: str | None = None) -> None:
    """Import what packages bring under a group; each at most once.

    Parameters
    ----------
    group : str
    name : str or None
        Only what goes by this name; None for all of the group.
    """
    found = entry_points(group=group) if name is None else entry_points(group=group, name=name)
    for point in found:
        if point not in _done:
            _done.add(point)
            _load(point)


def names(group: Group) -> list[str]:
    """Names that packages bring under a group, without importing any."""
    return sorted({point.name for point in entry_points(group=group)})


def _load(point: EntryPoint) -> None:
    try:
        point.load()
    except Exception as error:  # whatever a stranger's module does when it is imported
        package = point.dist.name if point.dist else point.value
        warnings.warn(
            f"plugin {package}: {point.group} {point.name} = {point.value} cannot be used, "
            f"{type(error).__name__}: {error}",
            PluginWarning,
            stacklevel=3,
        )
