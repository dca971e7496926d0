"""The definition of an op: a function from operands to a `Launch`, with a name and a WGSL file.

::

    @op
    def silu(x: Node) -> Launch: ...          shaders/ops/elementwise/silu.wgsl

    @op(shader=Path("swish.wgsl"))            an op from outside the package
    def swish(x: Node) -> Launch: ...

    @op(source="@compute …")                  its WGSL as text
    def swish(x: Node) -> Launch: ...

    @swish.reference                          the same in NumPy
    def numpy_swish(x: Array) -> Array: ...

    @swish.fuses("mul")                       where it takes the place of other ops
    def gated(node: OpNode, graph: Graph) -> Node | None: ...

Calling the op checks that its operands belong together, makes strided operands dense where the
kernel needs that (`dense=`), and adds a node to the operands' graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cache, update_wrapper
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload
from warnings import warn

from numpy.typing import NDArray

from wgpu_backend.dtypes import as_dtype
from wgpu_backend.errors import BackendError, ContextError, OptionError
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Graph, OpNode, Rule
from wgpu_backend.graph.node import Builder, Call, Launch, Node
from wgpu_backend.graph.wgsl_source import Inline, Source
from wgpu_backend.ops import plugins
from wgpu_backend.ops.check import refuse_array
from wgpu_backend.ops.constants import Operands
from wgpu_backend.ops.reference import REFERENCES

P = ParamSpec("P")
NumPyFunction = TypeVar("NumPyFunction", bound=Callable[..., NDArray[Any]])
Select = Callable[[Launch, Capabilities], Launch]
Replace = Callable[[OpNode, Graph], Node | None]
REGISTRY: dict[str, Op[Any]] = {}
# Rules by the name of the op they are asked for.
FUSIONS: dict[str, list[Rule]] = {}


class Op(Generic[P]):
    """A callable op.

    Parameters
    ----------
    record : callable
        Checks operands and returns the launch.
    name : str
    shader : str, Path or Inline
        WGSL: a name below ``shaders/``, a path elsewhere, or text.
    select : callable or None
        Chooses the variant of a launch that suits a device.
    dense : iterable of str
        Parameters whose operand is made contiguous first, beginning at a whole vector of four.
    trusted : bool
        The kernels stay inside their buffers without bounds clamping.
    constants : iterable of str
        Parameters whose operand may be a number or an array: it becomes a constant of the type of
        the other operand.
    """

    def __init__(
        self,
        record: Callable[P, Launch],
        *,
        name: str,
        shader: Source,
        select: Select | None = None,
        dense: Iterable[str] = (),
        trusted: bool = False,
        constants: Iterable[str] = (),
    ) -> None:
        self.record = record
        self.name = name
        self.shader = shader
        self.select = select
        self.trusted = trusted
        self._dense = frozenset(dense)
        self._operands = Operands(name, record, constants)
        self._names = self._operands.names
        # So that help() shows the function that was decorated.
        update_wrapper(self, record)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Node:
        """Add the op's node to the graph of its operands.

        Raises
        ------
        DTypeError
            An operand is no tensor, and nothing that becomes one.
        """
        numbers = self._operands.numbers(args, kwargs)
        builder = _builder(self.name, [*args, *kwargs.values()])
        if numbers:
            args, kwargs = self._operands.replace_numbers(builder, args, kwargs, numbers)  # pyright: ignore[reportAssignmentType]
        return self.add_to(builder, *args, **kwargs)

    def add_to(self, builder: Builder, /, *args: P.args, **kwargs: P.kwargs) -> Node:
        """Add the op's node to a given graph, for ops without operands."""
        # A type may be given by name, or as NumPy's.
        if "dtype" in kwargs:
            kwargs["dtype"] = as_dtype(kwargs["dtype"])
        if self._dense:
            args, kwargs = self._densify(builder, args, kwargs)  # pyright: ignore[reportAssignmentType]
        launch = self.record(*args, **kwargs)
        if launch is None:  # pyright: ignore[reportUnnecessaryComparison] functions outside the package are unchecked
            raise BackendError(f"{self.name}: it returns None, needs a Launch")
        # Ops of the package may leave that to `select`.
        if self.select is None and launch.groups is None and launch.threads is None:
            raise BackendError(
                f"{self.name}: its Launch has neither threads= nor groups=, needs one of them: "
                f"threads=ceil_div({launch.out.size}, 4) for threads of four values each, or "
                "groups=grid_for(rows) for work groups whose threads work together"
            )
        return builder.add(Call(self, args, kwargs), launch)

    def added(self, builder: Builder, /, *args: P.args, **kwargs: P.kwargs) -> Node:
        """Add the op's node to a graph; an old name of `add_to`, kept for one release."""
        warn("Op.added is now Op.add_to", DeprecationWarning, stacklevel=2)
        return self.add_to(builder, *args, **kwargs)

    def reference(self, function: NumPyFunction) -> NumPyFunction:
        """Register a function as the op's NumPy reference; it gets arrays for the op's tensors.

        Its result is converted to the dtype of the op's result. With a reference the op runs on the
        device ``cpu``, and `wgpu_backend.testing.check_op` has something to compare with.
        """
        REFERENCES[self.name] = function
        return function

    def twin(self, function: NumPyFunction) -> NumPyFunction:
        """Register a NumPy reference; an old name of `reference`, kept for one release."""
        warn("Op.twin is now Op.reference", DeprecationWarning, stacklevel=2)
        return self.reference(function)

    def fuses(
        self, *replaced: str, name: str = "", exact: bool = True, coarse: bool = False
    ) -> Callable[[Replace], Replace]:
        """Register a function as the fusion rule by which this op replaces others.

        Parameters
        ----------
        replaced : str
            Names of the ops for whose nodes it is tried: the last of those it replaces. ``"*"``
            tries it for every node.
        name : str
            Of the rule, where several make this op; left out, it is the op's.
        exact, coarse : bool
            See `wgpu_backend.graph.fusion.Rule`; what is coarse is not exact.
        """

        def register(replace: Replace) -> Replace:
            rule = Rule(name or self.name, replace, exact and not coarse, coarse)
            for op_name in replaced:
                FUSIONS.setdefault(op_name, []).append(rule)
            return replace

        return register

    def _densify(
        self, builder: Builder, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        dense = self._dense
        done = tuple(
            _dense(builder, a) if name in dense else a
            for name, a in zip(self._names, args, strict=False)
        )
        return done, {k: _dense(builder, v) if k in dense else v for k, v in kwargs.items()}


def _dense(builder: Builder, value: Any) -> Any:  # noqa: ANN401
    """Return `value`, or a dense copy of a node that is strided or begins inside a vector."""
    if not isinstance(value, Node) or (value.spec.is_dense and value.spec.offset % 4 == 0):
        return value
    # By name: the module of `contiguous` imports this one.
    contiguous = REGISTRY["contiguous"]
    return builder.add(Call(contiguous, (value,), {}), contiguous.record(value))


def _builder(name: str, values: Collection[Any]) -> Builder:
    builders = {
        id(v.builder): v.builder for v in values if isinstance(v, Node) and v.builder is not None
    }
    if len(builders) != 1:
        for value in values:
            refuse_array(name, "an operand", value)
        what = (
            "tensors of two contexts" if builders else "no tensor of a context among its operands"
        )
        raise ContextError(f"{name}: {what}; copy one over, or make an input in the same context")
    return next(iter(builders.values()))


def find(name: str) -> Op[Any]:
    """Find an op by its name, among registered ops and those of installed packages.

    Raises
    ------
    BackendError
        No op with this name is registered.
    """
    if name not in REGISTRY:
        plugins.load("wgpu_backend.ops", name)
    if name not in REGISTRY:
        raise BackendError(
            f"op {name!r} does not exist, needs one of {', '.join(sorted(REGISTRY))}"
        )
    return REGISTRY[name]


def fusions(
    wanted: bool | Collection[str] = True,
    *,
    exact: bool,
    coarse: bool = True,
    without: Collection[str] = (),
) -> dict[str, list[Rule]]:
    """Return the fusion rules that may be used, including those of installed packages.

    Parameters
    ----------
    wanted : bool or collection of str
        All, none, or names of rules.
    exact : bool
        Leave out those that round activations.
    coarse : bool
        Without, leave out those that round them to eight bits alone, unless `wanted` names them.
    without : collection of str
        Names of rules that are not used.

    Returns
    -------
    dict
        Rules by the name of the op they are asked for.

    Raises
    ------
    OptionError
        There is no rule of a name that is wanted.
    """
    _import_all()
    plugins.load("wgpu_backend.ops")
    names = {rule.name for rules in FUSIONS.values() for rule in rules}
    if not isinstance(wanted, bool):
        strange = sorted(set(wanted) - names)
        if strange:
            known = ", ".join(sorted(names))
            raise OptionError(f"fusion: no rule is called {strange[0]!r}, there are {known}")
        names &= set(wanted)
        # A caller that names a rule allows its rounding.
        coarse = True
    elif not wanted:
        names = set[str]()
    # These compute wrong values on the device.
    names -= set(without)
    return {
        name: [
            # Coarse rules are faster, so they are tried first.
            rule
            for rule in sorted(rules, key=lambda rule: not rule.coarse)
            if rule.name in names and _is_allowed(rule, exact, coarse)
        ]
        for name, rules in FUSIONS.items()
    }


def _is_allowed(rule: Rule, exact: bool, coarse: bool) -> bool:
    """Return whether a rule rounds no more than a caller allows."""
    return rule.exact or not (exact or (rule.coarse and not coarse))


@cache
def _import_all() -> None:
    """Import every op, since some are made by fusion rules only."""
    package = import_module("wgpu_backend.ops")
    # In alphabetical order: rules of one op are tried in the order of their import.
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)


@overload
def op(record: Callable[P, Launch], /) -> Op[P]: ...
@overload
def op(
    *,
    shader: str | Path = "",
    source: str = "",
    select: Select | None = None,
    dense: Iterable[str] = (),
    trusted: bool = False,
    constants: Iterable[str] = (),
) -> Callable[[Callable[P, Launch]], Op[P]]: ...
def op(
    record: Callable[P, Launch] | None = None,
    /,
    *,
    shader: str | Path = "",
    source: str = "",
    select: Select | None = None,
    dense: Iterable[str] = (),
    trusted: bool = False,
    constants: Iterable[str] = (),
) -> Op[P] | Callable[[Callable[P, Launch]], Op[P]]:
    """Make a function from operands to a `Launch` an op with the function's name.

    Parameters
    ----------
    record : callable
        Gets nodes and options, checks them, and returns the launch.
    shader : str or Path
        WGSL file: a name below ``shaders/``, or a path elsewhere. By default ``ops/FOLDER/NAME``,
        with the folder of the op's module below ``wgpu_backend/ops`` and the op's name.
    source : str
        Instead of `shader`: the WGSL itself; messages say ``NAME:line``.
    select, dense, trusted, constants
        See `Op`.

    Raises
    ------
    ValueError
        Another op has that name, or both `shader` and `source` are given.
    """

    def make(record: Callable[P, Launch]) -> Op[P]:
        name = record.__name__
        if name in REGISTRY:
            raise ValueError(f"op {name}: already registered by {REGISTRY[name].__module__}")
        if shader and source:
            raise ValueError(f"op {name}: it has both shader= and source=, needs one of them")
        wgsl = Inline(name, source) if source else shader or _own_shader(record)
        made = Op(
            record,
            name=name,
            shader=wgsl,
            select=select,
            dense=dense,
            trusted=trusted,
            constants=constants,
        )
        REGISTRY[name] = cast("Op[Any]", made)
        plugins.note(f"op {name}")
        return made

    return make if record is None else make(record)


def _own_shader(record: Callable[..., Launch]) -> str:
    """Return the default WGSL file of an op: ``shaders/ops`` has the folders of this package."""
    package, *inner = record.__module__.split(".")
    folder = inner[:-1] if package == "wgpu_backend" else ["ops"]
    return "/".join([*folder, record.__name__])
