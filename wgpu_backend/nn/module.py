"""Modules, and the GGUF names of the weights of their fields.

A model declares its parts as fields; `populate` finds the weights::

    class Layer(Module):
        attention_norm: RMSNorm = weight("attn_norm")
        query_norm: RMSNorm | None = weight("attn_q_norm")     # None where the file has none

    class Llama(Module):
        layers: list[Layer] = weight("blk")                    # blk.0, blk.1, …
        output: Linear = weight("output", alt="token_embd")    # the first name that exists

A field tagged with the empty name shares the prefix of its module. A tag may give the shape of a
weight, as numbers or as names of attributes of the module. Fields may also be tagged, or set to a
module, when a module is constructed::

    class MLP(Module):
        gate: Linear | None
        down: Linear = weight("ffn_down", "width", "inner")

        def __init__(self, width: int, inner: int, gated: bool) -> None:
            self.width, self.inner = width, inner
            if gated:
                self.gate = weight("ffn_gate", "inner", "width", needed=True)
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints
from warnings import warn

from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor

Class = TypeVar("Class")
Find = Callable[[str], Tensor | None]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tag:
    """The weights that a field is filled with.

    Parameters
    ----------
    names : tuple of str
        GGUF names: the field's own, then the alternatives.
    shape : tuple of int and str
        Extents, as numbers or names of attributes of the module; empty for any.
    kind : Module, type of Module or None
        The module that takes the weights; None for the annotation of the field.
    needed : bool or None
        Whether a file without the weights is refused; None to decide by the annotation.
    """

    names: tuple[str, ...]
    shape: tuple[int | str, ...] = ()
    kind: Module | type[Module] | None = None
    needed: bool | None = None


def weight(
    name: str,
    *shape: int | str,
    alt: str | tuple[str, ...] = (),
    kind: Module | type[Module] | None = None,
    needed: bool | None = None,
) -> Any:  # noqa: ANN401
    """Declare the weights that a field is filled with.

    Parameters
    ----------
    name : str
        Name below that of the enclosing module.
    shape : int or str
        Extents of the weight, row-major: numbers, or names of attributes of the enclosing module.
        An attribute may be a whole shape, or None for any. For a module of one weight, such as a
        `Linear`, it is the shape of that weight.
    alt : str or tuple of str
        Names to try if there is no such weight, from the root of the file.
    kind : Module, type of Module or None
        The module to fill, instead of the annotation. A module itself only in ``__init__``.
    needed : bool or None
        Whether to refuse a file without it; None decides by ``| None`` in the annotation.
    """
    return Tag((name, *((alt,) if isinstance(alt, str) else alt)), shape, kind, needed)


class Module:
    """A part of a model with weights; fields are declared with `weight`.

    Attributes
    ----------
    shape : tuple of int, or None
        Shape that the enclosing module requires of the weight; None for any.
    full_name : str
        Prefix of the names of its weights in the file, once it is filled. It ends with a dot, or
        is empty.
    """

    shape: Shape | None = None
    full_name: str = ""

    def __init_subclass__(cls, **options: Any) -> None:  # noqa: ANN401
        super().__init_subclass__(**options)
        for name, tag in vars(cls).items():
            # The weights of the model that was loaded last would be in all of them.
            if isinstance(tag, Tag) and isinstance(tag.kind, Module):
                raise ModelError(
                    f"{cls.__name__}.{name}: kind is one {type(tag.kind).__name__} for all models; "
                    "give a class, or set the field in __init__"
                )

    def declare(self, has: Callable[[str], bool]) -> None:
        """Tag fields depending on the weights of the file; called before they are filled.

        Parameters
        ----------
        has : callable
            Returns whether the file has a weight of this name, below that of the module.
        """


class FileModule(Module):
    """A module with the weights of a whole file: the base class of models and towers.

    Parameters
    ----------
    backend : Backend
        Backend with the weights of the file.

    Raises
    ------
    ModelError
        A weight is missing, or its shape differs from the one the field declares.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.fill(self)

    @property
    def config(self) -> Config:
        """Return the keys and values of the file."""
        return self.backend.config

    def find_weight(self, name: str) -> Tensor | None:
        """Return the weight of a name, or None."""
        return self.backend.get(name)

    def fill(self, module: Module, prefix: str = "") -> None:
        """Fill the fields of a module with the weights below a prefix.

        Raises
        ------
        ModelError
            A weight is missing, or its shape differs from the one the field declares.
        """
        try:
            populate(module, self.find_weight, prefix)
        except ModelError as error:
            raise self.fail(str(error)) from None

    def fail(self, message: str) -> ModelError:
        """Return an error whose message names the file."""
        return ModelError(f"{self.backend.file.path}: {message}")


def populate(module: Module, find: Find, prefix: str = "") -> bool:
    """Fill the tagged fields of a module with weights.

    Parameters
    ----------
    find : callable
        Returns the weight of a name, or None.
    prefix : str
        Name of the module in the file, ending with a dot, or empty.

    Returns
    -------
    bool
        Whether any weight was found, or the module has none.

    Raises
    ------
    ModelError
        A required field found no weight, or a weight has another shape.
    """
    module.declare(lambda name: find(prefix + name) is not None)
    values: dict[str, object] = {}
    # Raised at the end, because the other weights decide what a missing one means. Only messages
    # are kept: an error refers to this frame, and would keep all weights alive.
    missing: list[str] = []
    tags = _tags(module)
    for name, tag in tags.items():
        kind, optional = _unwrap_optional(_hints(type(module)).get(name, Module))
        try:
            value = values[name] = _field(module, tag.kind or kind, tag, find, prefix)
        except ModelError as error:
            missing.append(str(error))
            continue
        needed = not optional if tag.needed is None else tag.needed
        if value is None and needed:
            names = [prefix + tag.names[0], *tag.names[1:]]
            where = f"{type(module).__name__}.{name}"
            hint = _hint_misnamed(find, names, tensor=(tag.kind or kind) is Tensor)
            missing.append(f"tensor {' or '.join(names)} is missing, {where} needs it{hint}")
    if missing:
        raise ModelError(missing[0])
    for name, value in values.items():
        setattr(module, name, value)
    module.full_name = prefix
    return not tags or any(value is not None for value in values.values())


def _hint_misnamed(find: Find, names: Sequence[str], *, tensor: bool) -> str:
    """Return a hint if the file has a weight of nearly that name."""
    for name in names:
        if tensor and find(f"{name}.weight") is not None:
            return f"; {name}.weight is there, and a Tensor is tagged with the whole name"
        if not tensor and name.endswith(".weight") and find(name) is not None:
            return f"; {name} is there, and a module is tagged with the name before .weight"
    return ""


def modules(root: object) -> Iterator[Module]:
    """Yield a module and all modules in its fields and lists, each once."""
    seen: set[int] = set()
    left = [root]
    while left:
        one = left.pop()
        if isinstance(one, list | tuple):
            left += cast("Sequence[object]", one)
        # Modules may share a part, such as an embedding table that is also the output head.
        elif isinstance(one, Module) and id(one) not in seen:
            seen.add(id(one))
            left += vars(one).values()
            yield one


@cache
def _hints(kind: type[Module]) -> dict[str, Any]:
    return get_type_hints(kind)


def _tags(module: Module) -> dict[str, Tag]:
    """Return the fields to fill, by name; modules that are set already are filled in place."""
    tags = dict(_class_tags(type(module)))
    for name, value in vars(module).items():
        if isinstance(value, Tag):
            tags[name] = value
        elif isinstance(value, Module):
            tags[name] = Tag(("",), kind=value)
        else:
            tags.pop(name, None)
    return tags


@cache
def _class_tags(kind: type[Module]) -> dict[str, Tag]:
    tags: dict[str, Tag] = {}
    for base in reversed(kind.__mro__):
        # Bases first, so that a class replaces the fields it inherits.
        tags.update({k: v for k, v in vars(base).items() if isinstance(v, Tag)})
    return tags


def _unwrap_optional(hint: Any) -> tuple[Any, bool]:  # noqa: ANN401
    """Split `X | None` into X and True."""
    if get_origin(hint) in (Union, types.UnionType):
        # `X | None` and `Optional[X]` have different origins.
        kinds = [a for a in get_args(hint) if a is not type(None)]
        return kinds[0], len(kinds) < len(get_args(hint))
    return hint, False


def _field(owner: Module, kind: Any, tag: Tag, find: Find, prefix: str) -> Any:  # noqa: ANN401
    candidates = [prefix + tag.names[0], *tag.names[1:]]
    # A module that was made by the enclosing one: its own fields say what is optional.
    if tag.kind is not None and tag.names == ("",):
        return _fill(kind, find, prefix)
    if get_origin(kind) is list:
        return _modules(get_args(kind)[0], find, candidates[0]) or None
    shape = _shape(owner, tag.shape)
    for name in candidates:
        inner = name if not tag.names[0] else f"{name}."
        if kind is Tensor:
            value = _tensor(find, name, shape)
        else:
            value = _module(cast("type[Module]", kind), find, inner, shape)
        if value is not None:
            return value
    return None


def _fill(module: Module, find: Find, prefix: str) -> Module:
    """Fill a module that is set in a field; none of its weights may be missing."""
    populate(module, find, prefix)
    return module


def _shape(owner: Module, extents: tuple[int | str, ...]) -> Shape | None:
    """Return the shape of a tag, with names replaced by their values."""
    values: list[Shape | int | None] = [
        getattr(owner, extent) if isinstance(extent, str) else extent for extent in extents
    ]
    shape: list[int] = []
    for value in values:
        if value is None:
            return None
        shape += value if isinstance(value, tuple) else (value,)
    return tuple(shape) if values else None


def _tensor(find: Find, name: str, shape: Shape | None) -> Tensor | None:
    found = find(name)
    if found is not None and shape is not None and found.shape != shape:
        raise ModelError(f"tensor {name} is {found.shape}, the file's keys require {shape}")
    return found


def _module(
    kind: Module | type[Module], find: Find, prefix: str, shape: Shape | None = None
) -> Module | None:
    """Return the module at a prefix, or None if none of its weights exists."""
    probe = {"any": False}

    def probing(name: str) -> Tensor | None:
        tensor = find(name)
        probe["any"] |= tensor is not None
        return tensor

    made = kind if isinstance(kind, Module) else kind()
    if shape is not None:
        made.shape = shape
    try:
        populated = populate(made, probing, prefix)
    except ModelError:
        if probe["any"]:
            raise
        return None
    return made if populated else None


def _modules(kind: type[Module], find: Find, name: str) -> list[Module]:
    made: list[Module] = []
    while _class_tags(kind) and (module := _module(kind, find, f"{name}.{len(made)}.")) is not None:
        made.append(module)
    return made


def old_names(**names: str) -> Callable[[type[Class]], type[Class]]:
    """Keep the former names of a class's attributes working for one release.

    Parameters
    ----------
    **names : str
        The new name by the old one. Reading the old one emits a DeprecationWarning.
    """

    def add(cls: type[Class]) -> type[Class]:
        for old, new in names.items():
            setattr(cls, old, property(_forward(f"{cls.__name__}.{old}", new)))
        return cls

    return add


def _forward(old: str, new: str) -> Callable[[object], object]:
    def get(instance: object) -> object:
        warn(f"{old} is now {new}", DeprecationWarning, stacklevel=2)
        return getattr(instance, new)

    return get
