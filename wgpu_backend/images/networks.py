"""The networks of a pipeline's components, by the class names in files."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any, cast

from wgpu_backend.array.nn import NETWORKS, Module
from wgpu_backend.images.folder import Component
from wgpu_backend.images.gguf_component import GgufComponent
from wgpu_backend.images.weights import load_network

_PACKAGE = f"{__name__.partition('.')[0]}.models.images"


def open_network(component: Component) -> Any:  # noqa: ANN401  what it is called with is its own
    """Make the network of a component, with its weights on the default device.

    Raises
    ------
    ModelError
        Its class or a setting is unknown, or tensors do not fit.
    """
    network = make_network(component)
    if isinstance(component, GgufComponent):
        return component.fill(network)
    return load_network(component, network)


def make_network(component: Component) -> Module:
    """Make the network of a component without weights; raises like `open_network`."""
    _find()
    return cast("Any", component.choose(NETWORKS))(component.settings)


def _find() -> None:
    """Import all modules of networks, so that each registers its classes."""
    # The folder is listed, so that no module here names one of them.
    package = import_module(_PACKAGE)
    for module in iter_modules(package.__path__):
        import_module(f"{_PACKAGE}.{module.name}")
