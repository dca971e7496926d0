"""A Jinja environment that cannot be escaped, and that stops at its budget.

Jinja's immutable sandbox keeps a template away from Python's internals. This adds the rest. Every
repetition in a template (loops, calls, filters) checks the clock, and every value that it makes
(operators, filters, methods, literals, captured blocks) is charged. Loops, concatenations, literals
and slices have no hook in Jinja, so the compiler is changed to route them through the environment.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType
from typing import Any, cast

import jinja2
from jinja2 import Environment, nodes, pass_environment
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import make_attrgetter
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.runtime import Context, markup_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from wgpu_backend.errors import TemplateError
from wgpu_backend.text.chat_template import estimates
from wgpu_backend.text.chat_template.budget import Budget, Metered, list_parts
from wgpu_backend.text.chat_template.formatting import format_text

# Jinja's filters and tests with checks of the budget before and after each.
#
# Parameters are Jinja's own. ``tojson`` and ``sum`` are replaced: chat templates expect another
# ``tojson``, and the sum has to be interruptible.


Value = Any
"""Any value that a template computes."""

Function = Callable[..., Value]

# Filters for web pages: not useful here, and each can take long in its own way.
_REMOVED = ("pprint", "urlize", "wordwrap", "xmlattr", "random", "striptags")
_OF_TEXT = frozenset(
    (
        *("capitalize", "e", "escape", "forceescape", "lower", "safe", "string"),
        *("title", "trim", "truncate", "upper", "urlencode", "wordcount"),
        *("center", "indent", "replace", "format"),
    )
)
_OF_ITEMS = frozenset(
    (
        *("batch", "groupby", "list", "map", "max", "min", "reject", "rejectattr"),
        *("select", "selectattr", "slice", "sort", "sum", "unique"),
    )
)
# Positions of an attribute's path among the arguments.
_PATH_AT = {
    "groupby": 0, "selectattr": 0, "rejectattr": 0, "sum": 0, "max": 1, "min": 1, "unique": 1,
    "sort": 2,
}  # fmt: skip


def meter_filters(budget: Budget, filters: Mapping[str, Function]) -> dict[str, Function]:
    """Wrap Jinja's filters for one rendering."""
    kept = {name: f for name, f in filters.items() if name not in _REMOVED}
    kept |= {
        "tojson": _json_filter(budget),
        "sum": _sum_filter(budget, kept["sum"]),
        "join": _join_filter(budget, kept["join"]),
    }
    return {name: _meter_filter(budget, name, function) for name, function in kept.items()}


def meter_tests(budget: Budget, tests: Mapping[str, Function]) -> dict[str, Function]:
    """Wrap Jinja's tests (``is odd``) for one rendering."""
    return {name: _meter_test(budget, name, function) for name, function in tests.items()}


def _meter_filter(budget: Budget, name: str, function: Function) -> Function:
    # Jinja passes a context first.
    passed = 1 if hasattr(function, "jinja_pass_arg") else 0
    check = estimates.FILTERS.get(name)

    @functools.wraps(function)
    def wrapper(*args: Value, **kwargs: Value) -> Value:
        budget.tick()
        value, *rest = args[passed:]
        if name in _OF_TEXT:
            budget.allow_text(value)
        elif name in _OF_ITEMS:
            _check_path(name, rest, kwargs)
            value = Metered(value, budget) if isinstance(value, str) else value
        if check is not None:
            check(budget, value, *rest, **kwargs)
        return budget.charge(function(*args[:passed], value, *rest, **kwargs))

    return wrapper


def _check_path(name: str, rest: list[Value], kwargs: Mapping[str, Value]) -> None:
    at = _PATH_AT.get(name, len(rest))
    for path in (kwargs.get("attribute"), *rest[at : at + 1]):
        estimates.check_path(path)


def _meter_test(budget: Budget, name: str, function: Function) -> Function:
    passed = 1 if hasattr(function, "jinja_pass_arg") else 0
    check = estimates.TESTS.get(name)

    @functools.wraps(function)
    def wrapper(*args: Value, **kwargs: Value) -> Value:
        budget.tick()
        if check is not None:
            check(budget, *args[passed:], **kwargs)
        return function(*args, **kwargs)

    return wrapper


def _join_filter(budget: Budget, original: Function) -> Function:
    @functools.wraps(original)
    def join(
        context: Value,
        value: Iterable[object],
        d: object = "",
        attribute: str | int | None = None,
    ) -> str:
        estimates.check_path(attribute)
        if attribute is not None:
            value = map(make_attrgetter(context.environment, attribute), value)
        return original(context, estimates.items_to_join(budget, value, d), d)

    return join


def _sum_filter(budget: Budget, original: Function) -> Function:
    @pass_environment
    def total(
        environment: Environment,
        iterable: Iterable[Value],
        attribute: str | int | None = None,
        start: Value = 0,
    ) -> Value:
        term = make_attrgetter(environment, attribute)
        result = start
        for value in iterable:
            addend = term(value)
            estimates.check_operator(budget, "+", result, addend)
            result = budget.charge(result + addend)
        return result

    return _like(total, original)


def _like(function: Function, original: Function) -> Function:
    """Give a function the signature of the one it replaces."""
    function.__wrapped__ = original  # pyright: ignore[reportFunctionMemberAccess]
    return function


def _json_filter(budget: Budget) -> Function:
    def tojson(
        x: object,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Write JSON as Hugging Face's templates expect: unescaped, not made safe for HTML."""
        _allow_json(budget, x, indent, separators)
        return json.dumps(
            x,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    return tojson


def _allow_json(
    budget: Budget, x: object, indent: int | str | None, separators: tuple[str, str] | None
) -> None:
    size = budget.measure(x) if list_parts(x) else None
    text = budget.text_size(x)
    if size is not None:
        between = sum(map(len, separators)) if separators else 4
        step = len(indent) if isinstance(indent, str) else max(0, indent or 0)
        text += (size.parts + 2) * (between + step * (size.depth + 1))
    budget.allow(text)
    # Every character may be escaped, as six characters of four bytes.
    budget.reserve(text * 24)


_REMOVED_METHODS = ("translate", "encode", "maketrans", "striptags")
# Arguments that a loop or a block adds to each call.
_FROM_JINJA = ("_loop_vars", "_block_vars")
_PIECE_BYTES = 64
# Python compiles these in half a second; the longest known code is an eighth of it.
_MAX_CODE_CHARS = 1 << 19


class _Generation(Extension):
    """A tag around the assistant's text, which matters in training only."""

    tags = {"generation"}  # noqa: RUF012  # Jinja declares it so

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Check the clock at each word while parsing."""
        sandbox = cast("Sandbox", self.environment)
        for token in stream:
            sandbox.tick()
            yield token

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _MeteredGenerator(CodeGenerator):
    """A code generator that routes unhooked operations through methods of `Sandbox`."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Value) -> str:
        if isinstance(node, nodes.TemplateData):
            return super()._output_child_to_const(node, frame, finalize)
        # Otherwise filters run while compiling, and again at each level.
        raise nodes.Impossible

    def visit(self, node: nodes.Node, *args: Value, **kwargs: Value) -> Value:
        cast("Sandbox", self.environment).tick()
        return super().visit(node, *args, **kwargs)

    def buffer(self, frame: Frame) -> None:
        frame.buffer = self.temporary_identifier()
        self.writeline(f"{frame.buffer} = environment.buffer()")

    def signature(
        self,
        node: nodes.Call | nodes.Filter | nodes.Test,
        frame: Frame,
        extra_kwargs: Mapping[str, Value] | None = None,
    ) -> None:
        if node.dyn_args is not None:
            node.dyn_args = _call("metered_items", node.dyn_args)
        super().signature(node, frame, extra_kwargs)

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:
        super().visit_Operand(nodes.Operand(node.op, _call("metered_operand", node.expr)), frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        node.iter = _call("metered_items", cast("nodes.Expr", node.iter))
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.visit(_call("metered_concat", nodes.ContextReference(), *node.nodes), frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            ends = (node.arg.start, node.arg.stop, node.arg.step)
            parts = [nodes.Const(None) if end is None else end for end in ends]
            self.visit(_call("metered_slice", node.node, *parts), frame)
        else:
            super().visit_Getitem(node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._visit_literal(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._visit_literal(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "store":
            super().visit_Tuple(node, frame)
        else:
            self._visit_literal(super().visit_Tuple, node, frame)

    def _visit_literal(
        self, visit: Callable[[Value, Frame], None], node: nodes.Literal, frame: Frame
    ) -> None:
        self.write("environment.charge(")
        visit(node, frame)
        self.write(")")


def _call(method: str, *arguments: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), list(arguments), [], None, None)


class _Namespace(Namespace):
    """A namespace without names that Python uses implicitly, such as ``__html__``."""

    def __init__(*args: Value, **kwargs: Value) -> None:  # pyright: ignore[reportSelfClsParameterName]
        Namespace.__init__(*args, **kwargs)
        for name in cast("dict[str, Value]", object.__getattribute__(args[0], "_Namespace__attrs")):
            _check_name(name)

    def __setitem__(self, name: str, value: Value) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise TemplateError(
            f"chat template: namespace holds {name:.40}, needs names without a leading underscore"
        )


class _Dict:
    """A ``dict`` for templates: without methods that change another object."""

    def __call__(self, *args: Value, **kwargs: Value) -> dict[Value, Value]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[object], value: object = None) -> dict[Value, Value]:
        return dict.fromkeys(keys, value)


class _Buffer(list[str]):
    """The output of a macro or a captured block, limited in length."""

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self._budget = budget
        self._chars = 0

    def append(self, piece: str, /) -> None:
        self._chars += len(piece)
        self._budget.allow(self._chars)
        self._budget.take(_PIECE_BYTES)
        super().append(piece)

    def extend(self, pieces: Iterable[str], /) -> None:
        for piece in pieces:
            self.append(piece)


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for one rendering of a chat template.

    Parameters
    ----------
    budget : Budget
        The limits of the rendering.
    """

    code_generator_class = _MeteredGenerator
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, budget: Budget) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, LoopControlExtension],
            optimized=False,
            finalize=self._check_output,
            # A budget belongs to one rendering, and so must the template's code.
            cache_size=0,
        )
        self._budget = budget
        names = cast("dict[str, Value]", self.globals)  # pyright: ignore[reportUnknownMemberType]
        # It writes random text, any number of paragraphs of it.
        names.pop("lipsum")
        names |= {"namespace": _Namespace, "dict": _Dict()}
        self.filters = meter_filters(budget, cast("dict[str, Value]", self.filters))  # pyright: ignore[reportUnknownMemberType]
        self.tests = meter_tests(budget, cast("dict[str, Value]", self.tests))  # pyright: ignore[reportUnknownMemberType]

    def tick(self) -> None:
        """Check the clock."""
        self._budget.tick()

    def charge(self, value: Value) -> Value:
        """Charge for a literal."""
        return self._budget.charge(value)

    def buffer(self) -> list[str]:
        """Start a list of what a macro or a captured block writes."""
        return _Buffer(self._budget)

    def metered_items(self, items: Iterable[object]) -> Iterator[object]:
        """Check the clock at each iteration of a loop, and charge for each character of a text."""
        of_text = isinstance(items, str)
        for item in items:
            if of_text:
                self._budget.charge(item)
            self._budget.tick()
            yield item

    def metered_operand(self, value: Value) -> Value:
        """Check the clock before a comparison."""
        self._budget.tick()
        return value

    def metered_concat(self, context: Context, *values: object) -> str:
        """Join texts, the operator ``~``."""
        kept = estimates.items_to_join(self._budget, values, "")
        escaped = context.eval_ctx.autoescape
        return self._budget.charge(markup_join(kept) if escaped else "".join(map(str, kept)))

    def metered_slice(
        self,
        value: Value,
        start: int | None,
        stop: int | None,
        step: int | None,
    ) -> object:
        """Take a slice."""
        return self._budget.charge(value[start:stop:step])

    def concat(self, pieces: Iterable[str]) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Join the output of a macro or a captured block."""
        if not isinstance(pieces, _Buffer):
            buffer = _Buffer(self._budget)
            buffer.extend(pieces)
            pieces = buffer
        return self._budget.charge("".join(pieces))

    def _compile(self, source: str, filename: str) -> CodeType:
        if len(source) > _MAX_CODE_CHARS:
            raise TemplateError(
                f"chat template: becomes {len(source)} characters of code, "
                f"needs at most {_MAX_CODE_CHARS}"
            )
        return super()._compile(source, filename)

    def getitem(self, obj: Value, argument: Value) -> Value:
        """Get an item of a value, which may have to hash a long key."""
        self._budget.tick()
        return super().getitem(obj, argument)

    def getattr(self, obj: Value, attribute: str) -> Value:
        """Read an attribute."""
        self._budget.tick()
        return super().getattr(obj, attribute)

    def call(  # pyright: ignore[reportIncompatibleMethodOverride]
        __self,  # noqa: N805  # as in Jinja: a template may pass an argument named self
        __context: Context,
        __obj: Value,
        *args: Value,
        **kwargs: Value,
    ) -> Value:
        """Call a function, a macro or a method."""
        budget = __self._budget
        budget.tick()
        given = {name: value for name, value in kwargs.items() if name not in _FROM_JINJA}
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            args = _check_method(budget, owner, __obj.__name__, args, given)
        elif isinstance(owner, type | _Dict):
            # dict.fromkeys splits a string into characters.
            budget.reserve_items(args[0] if args else None)
        return budget.charge(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Value, right: Value) -> Value:
        """Apply an operator."""
        self._budget.tick()
        estimates.check_operator(self._budget, operator, left, right)
        return self._budget.charge(super().call_binop(context, operator, left, right))

    def is_safe_attribute(self, obj: Value, attr: str, value: Value) -> bool:
        """Refuse methods of numbers, bytes and sets, and string methods without use here."""
        if isinstance(obj, int | float | complex | bytes | bytearray | set | frozenset):
            return False
        if isinstance(obj, str) and attr in _REMOVED_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Value) -> Callable[..., str] | None:
        """Wrap ``str.format`` as the sandbox does, with a check of each field."""
        if super().wrap_str_format(value) is None:
            return None

        def with_mapping(mapping: Mapping[str, Value], /) -> str:
            return format_text(self, self._budget, value.__self__, (), mapping)

        def with_values(*args: Value, **kwargs: Value) -> str:
            return format_text(self, self._budget, value.__self__, args, kwargs)

        of_mapping = value.__name__ == "format_map"
        return functools.update_wrapper(with_mapping if of_mapping else with_values, value)

    def _check_output(self, value: object) -> object:
        self._budget.allow_text(value)
        return value


def _check_method(
    budget: Budget, text: str, name: str, args: tuple[Value, ...], kwargs: dict[str, Value]
) -> tuple[Value, ...]:
    """Check a string method's result, and return its arguments."""
    if name == "join" and args:
        return (estimates.items_to_join(budget, args[0], text), *args[1:])
    check = estimates.METHODS.get(name)
    if check is not None:
        check(budget, text, *args, **kwargs)
    return args


Code = Value
"""A compiled template: Python's code object, which Jinja's types call Value."""


def load(code: CodeType, budget: Budget) -> jinja2.Template:
    """Create a template from compiled code, with a budget of its own."""
    sandbox = Sandbox(budget)
    return sandbox.template_class.from_code(sandbox, code, sandbox.make_globals(None))
