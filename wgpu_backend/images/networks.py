"""Networks of a pipeline's components, by the classes that files name."""

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
    """The network of a component, with its weights on the default device.

    Raises
    ------
    ModelError
        Nobody knows its class, a setting is not known, or tensors do not fit.
    """
    network = make_network(component)
    if isinstance(component, GgufComponent):
        return component.fill(network)
    return load_network(component, network)


def make_network(component: Component) -> Module:
    """The network of a component before it has weights; raises as `open_network`."""
    _find()
    return cast("Any", component.choose(NETWORKS))(component.settings)


def _find() -> None:
    """Import what is beside the networks, so that each enters itself."""
    # By listing a folder: nothing here knows one of them by name.
    package = import_module(_PACKAGE)
    for module in iter_modules(package.__path__):
        import_module(f"{_PACKAGE}.{module.name}")
