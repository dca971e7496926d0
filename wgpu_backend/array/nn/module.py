"""The base class of networks and layers, and layers that only hold others.

Arrays among the attributes of a module, in lists and dictionaries too, are parameters; their names
are the paths to them, ``layers.0.weight``. Attributes that begin with an underscore are neither
parameters nor parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from wgpu_backend.array.base import ArrayBase, wrap
from wgpu_backend.errors import ModelError, OptionError

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

# Names that a message lists; the rest is counted.
_SHOWN = 3
Container = dict[Any, Any] | list[Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """A reference to a parameter: the module that owns it and its name there.

    Parameters
    ----------
    path : str
        Its name from the top: ``layers.0.weight``.
    name : str
        The attribute of its module.
    module : Module
        The one that it is an attribute of.
    """

    path: str
    name: str
    module: Module
    _container: Container
    _key: Any

    @property
    def array(self) -> Array:
        """The parameter."""
        return cast("Array", self._container[self._key])

    def put(self, array: Array) -> None:
        """Replace the parameter by another array."""
        self._container[self._key] = array


class Module:
    """The base class of networks and layers.

    Attributes
    ----------
    published_axes : dict of str to tuple of int
        For parameters whose axes PyTorch orders differently: the permutation of its axes.
    """

    published_axes: ClassVar[Mapping[str, tuple[int, ...]]] = {}

    def __contains__(self, name: str) -> bool:
        return vars(self).get(name) is not None

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def __repr__(self) -> str:
        parts = [f"({n}): {m!r}" for n, m in self.children()]
        lines = "".join("\n  " + p.replace("\n", "\n  ") for p in parts)
        return f"{type(self).__name__}({self.describe()}{lines}{chr(10) if lines else ''})"

    def describe(self) -> str:
        """Return the shapes of the module's own parameters, for `repr`."""
        own = [s for s in self.slots() if s.module is self]
        return ", ".join(f"{s.name}={s.array.shape}" for s in own)

    # Parts.

    def children(self) -> Iterator[tuple[str, Module]]:
        """Yield the modules one level down, with their paths."""
        for name, value in self._attributes():
            yield from _modules(name, value)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield the module and all nested modules, with their paths."""
        yield prefix, self
        for name, module in self.children():
            yield from module.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> list[Module]:
        """Return the module and all nested modules."""
        return [m for _, m in self.named_modules()]

    def apply_to_modules(self, change: Callable[[str, Module], Any]) -> Self:
        """Call a function with the path of each nested module, and the module."""
        # A list: the function may replace parts.
        for path, module in list(self.named_modules()):
            change(path, module)
        return self

    def update_modules(self, changed: Mapping[str, Module]) -> Self:
        """Replace modules, by their paths."""
        for path, module in changed.items():
            container, key = self._place(path)
            container[key] = module
        return self

    def _place(self, path: str) -> tuple[Container, Any]:
        """Return container and key of the part at a path."""
        here: Any = self
        *before, last = path.split(".")
        try:
            for name in before:
                here = _within(here)[_key(here, name)]
            container, key = _within(here), _key(here, last)
            # Raises if there is nothing at the path.
            container[key]
        except (KeyError, IndexError, ValueError, TypeError):
            raise OptionError(f"{type(self).__name__}: has no part {path!r}") from None
        return container, key

    # Parameters.

    def slots(self, prefix: str = "") -> Iterator[Slot]:
        """Yield the places of all parameters, in order."""
        for name, value in self._attributes():
            path = f"{prefix}.{name}" if prefix else name
            yield from _slots(path, name, self, vars(self), name, value)

    def parameters(self) -> dict[str, Any]:
        """Return all parameters, as a tree of dictionaries and lists."""
        found = {n: _tree(v) for n, v in self._attributes()}
        return {n: t for n, t in found.items() if _has_arrays(t)}

    def update(self, parameters: Any) -> Self:
        """Replace parameters by the arrays of a tree in the form of `parameters`."""
        self.load_weights(list(_paths("", parameters)), strict=False)
        return self

    def apply(self, change: Callable[[Array], Array]) -> Self:
        """Replace each parameter by the result of a function."""
        for slot in self.slots():
            slot.put(change(slot.array))
        return self

    def set_dtype(self, dtype: Any) -> Self:
        """Store all parameters that are floats in another type of float."""
        from wgpu_backend.array.types import FLOATING

        return self.apply(lambda a: a.astype(dtype) if a.dtype in FLOATING else a)

    def load_weights(
        self,
        weights: str | Path | Mapping[str, Array] | Sequence[tuple[str, Array]],
        strict: bool = True,
    ) -> Self:
        """Take parameters by their paths, of a dictionary, pairs, or a file that `wx.load` reads.

        Parameters
        ----------
        weights : path, dict, or pairs of str and Array
        strict : bool
            Require all parameters, and no others.

        Raises
        ------
        ModelError
            Weights are missing or unexpected, or have another shape than their parameters.
        """
        given: dict[str, Any] = dict(_load(weights))
        slots = {s.path: s for s in self.slots()}
        if strict:
            _require_all(type(self).__name__, slots, given)
        surplus = [name for name in given if name not in slots]
        if surplus:
            raise ModelError(f"{type(self).__name__}: has no parameter {_list_names(surplus)}")
        # All shapes are checked before the first parameter changes.
        for path, array in given.items():
            require_shape(type(self).__name__, slots[path], array.shape)
        for path, array in given.items():
            slots[path].put(array)
        return self

    # Switches of training, which change nothing here.

    def eval(self) -> Self:
        """Return the module itself: it never trains."""
        return self

    def freeze(self) -> Self:
        """Return the module itself: it never trains."""
        return self

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        return ((n, v) for n, v in list(vars(self).items()) if not n.startswith("_"))


def require_shape(owner: str, slot: Slot, shape: Sequence[int]) -> None:
    """Raise ModelError unless a shape is that of the parameter."""
    if tuple(shape) != slot.array.shape:
        raise ModelError(
            f"{owner}: parameter {slot.path!r} has shape {list(slot.array.shape)}, given is "
            f"{list(shape)}"
        )


def _load(weights: Any) -> Any:
    if not isinstance(weights, str | Path):
        return weights
    import wgpu_backend.array as namespace

    return cast("Any", namespace).load(str(weights))


def _require_all(owner: str, slots: Mapping[str, Slot], given: Mapping[str, Any]) -> None:
    missing = [path for path in slots if path not in given]
    surplus = [path for path in given if path not in slots]
    if missing:
        also = f"; given and unknown is {_list_names(surplus)}" if surplus else ""
        raise ModelError(
            f"{owner}: {len(missing)} of {len(slots)} parameters are missing: "
            f"{_list_names(missing)}{also}"
        )
    if surplus:
        raise ModelError(
            f"{owner}: {len(surplus)} of {len(given)} weights fit no parameter: "
            f"{_list_names(surplus)}"
        )


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def _within(owner: Any) -> Any:
    return vars(owner) if isinstance(owner, Module) else owner


def _key(owner: Any, name: str) -> Any:
    return int(name) if isinstance(owner, list | tuple) else name


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return keys and values of a container; nothing for any other object."""
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value).items()
    if isinstance(value, list | tuple):
        return enumerate(cast("list[Any]", value))
    return ()


def _modules(path: str, value: Any) -> Iterator[tuple[str, Module]]:
    if isinstance(value, Module):
        yield path, value
    for key, item in _items(value):
        yield from _modules(f"{path}.{key}", item)


def _slots(
    path: str, name: str, owner: Module, container: Any, key: Any, value: Any
) -> Iterator[Slot]:
    if isinstance(value, ArrayBase):
        yield Slot(path, name, owner, container, key)
    elif isinstance(value, Module):
        yield from value.slots(path)
    for inner, item in _items(value):
        yield from _slots(f"{path}.{inner}", name, owner, value, inner, item)


def _tree(value: Any) -> Any:
    if isinstance(value, Module):
        return value.parameters()
    if isinstance(value, dict):
        return {k: _tree(v) for k, v in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_tree(v) for v in cast("list[Any]", value)]
    return value if isinstance(value, ArrayBase) else {}


def _has_arrays(tree: Any) -> bool:
    return isinstance(tree, ArrayBase) or any(_has_arrays(v) for _, v in _items(tree))


def _paths(prefix: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a tree with the paths to them."""
    if isinstance(tree, ArrayBase):
        yield prefix, tree
    for key, value in _items(tree):
        yield from _paths(f"{prefix}.{key}" if prefix else str(key), value)


class Sequential(Module):
    """A chain of layers, each called with the result of the one before.

    Parameters
    ----------
    *layers : Module or callable
    """

    def __init__(self, *layers: Callable[[Any], Any]) -> None:
        self.layers = list(layers)

    def __call__(self, x: Any) -> Any:
        """Call the layers one after another, and return the last result."""
        for layer in self.layers:
            x = layer(x)
        return x


class Identity(Module):
    """A layer that returns its input; it takes any arguments."""

    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    def __call__(self, x: Array) -> Array:
        """Return the same values, as an array of its own."""
        return wrap(x.node)


class Dropout(Identity):
    """A dropout layer, which drops nothing: networks do not train here."""


class Dropout2d(Identity):
    """A dropout layer, which drops nothing: networks do not train here."""


class Dropout3d(Identity):
    """A dropout layer, which drops nothing: networks do not train here."""


N = TypeVar("N", bound=type[Module])
NETWORKS: dict[str, type[Module]] = {}
"""Networks by the class names of files, such as ``UNet2DConditionModel``."""


def published(*names: str) -> Callable[[N], N]:
    """Register a network under the class names that files have for it; a decorator."""

    def enter(network: N) -> N:
        NETWORKS.update(dict.fromkeys(names, network))
        return network

    return enter
