"""Arrays in lists, tuples and dictionaries: found, and put back in other arrays' places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from wgpu_backend.array.core import Core

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def leaves(tree: Any) -> Iterator[Array]:
    """Arrays in a tree, in order; a module stands for its parameters."""
    if isinstance(tree, Core):
        yield cast("Array", tree)
    elif isinstance(tree, dict):
        for value in cast("dict[Any, Any]", tree).values():
            yield from leaves(value)
    elif isinstance(tree, list | tuple):
        for value in cast("list[Any]", tree):
            yield from leaves(value)
    elif hasattr(tree, "parameters"):
        yield from leaves(tree.parameters())


def map_tree(change: Callable[[Any], Any], tree: Any, kind: type = Core) -> Any:
    """The same tree with something else for each array, or for each thing of another kind."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, dict):
        return {k: map_tree(change, v, kind) for k, v in cast("dict[Any, Any]", tree).items()}
    if isinstance(tree, list | tuple):
        items = [map_tree(change, v, kind) for v in cast("list[Any]", tree)]
        return items if isinstance(tree, list) else _like(cast("Any", tree), items)
    return tree


def _like(model: Any, items: list[Any]) -> Any:
    """Tuple of the model's kind, which may have names for its items."""
    return type(model)(*items) if hasattr(model, "_fields") else tuple(items)


def form(tree: Any) -> Any:
    """What trees have in common that differ in the values of arrays alone; hashable.

    Raises
    ------
    TypeError
        Something in the tree is neither an array nor hashable.
    """
    if isinstance(tree, Core):
        return (Core, tree.shape, tree.dtype)
    if isinstance(tree, dict):
        return (dict, tuple((k, form(v)) for k, v in cast("dict[Any, Any]", tree).items()))
    if isinstance(tree, list | tuple):
        return (type(tree), tuple(form(v) for v in cast("list[Any]", tree)))  # pyright: ignore[reportUnknownArgumentType]
    hash(tree)
    # 1, 1.0 and True are equal and not the same; nor are 0.0 and -0.0, which repr tells apart.
    return (type(tree), repr(tree) if isinstance(tree, float | complex) else tree)
