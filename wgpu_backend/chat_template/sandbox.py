"""A Jinja environment that cannot be left, and that stops at its budget.

Jinja's immutable sandbox keeps a template away from Python's internals. This adds the rest: every
way in which a template repeats itself (loops, calls, filters) checks the clock, and every way in
which it makes values (operators, filters, methods, literals, captured blocks) is charged. Loops,
concatenations, literals and slices reach no hook of Jinja's, so the compiler is told to route them
through the environment.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from wgpu_backend.chat_template.budget import ESTIMATES, Budget
from wgpu_backend.errors import TemplateError

Value = Any
"""Whatever a template computes."""

_MAX_INTEGER_BITS = 1 << 14
_MAX_JSON_INDENT = 16
_REMOVED_FILTERS = ("pprint", "urlize", "wordwrap", "xmlattr", "random")
_REMOVED_METHODS = ("translate", "encode", "maketrans")
_TEXT_FILTERS = frozenset(
    (
        *("capitalize", "e", "escape", "forceescape", "lower", "safe", "string", "striptags"),
        *("title", "trim", "truncate", "upper", "urlencode", "wordcount"),
        *("center", "indent", "replace", "format"),
    )
)


class _Generation(Extension):
    """The tag around what the assistant says, which matters in training only."""

    tags = {"generation"}  # noqa: RUF012  # Jinja declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _MeteredGenerator(CodeGenerator):
    """Routes what Jinja runs without asking the environment through methods of `Sandbox`."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Value) -> str:
        if isinstance(node, nodes.TemplateData):
            return super()._output_child_to_const(node, frame, finalize)
        raise nodes.Impossible  # else filters run while compiling, and again at each level

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        node.iter = _call("metered_items", cast("nodes.Expr", node.iter))
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.visit(_call("metered_concat", *node.nodes), frame)

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


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for one rendering of a chat template.

    Parameters
    ----------
    budget : Budget
        What the rendering may use.
    """

    code_generator_class = _MeteredGenerator
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, budget: Budget) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, LoopControlExtension],
            optimized=False,
            finalize=self._shown,
            cache_size=0,
        )
        self._budget = budget
        self.globals.pop("lipsum")  # pyright: ignore[reportUnknownMemberType]
        filters = cast(
            "dict[str, Callable[..., Value]]",
            self.filters,  # pyright: ignore[reportUnknownMemberType]
        )
        filters["tojson"] = self._to_json
        filters["sum"] = self._sum
        filters["join"] = self._join_filter(filters["join"])
        for name in _REMOVED_FILTERS:
            filters.pop(name)
        for name, function in filters.items():
            filters[name] = self._metered_filter(name, function)

    def charge(self, value: Value) -> Value:
        """Charge for a literal."""
        return self._budget.charge(value)

    def metered_items(self, items: Iterable[object]) -> Iterator[object]:
        """Check the clock at each turn of a loop."""
        for item in items:
            self._budget.tick()
            yield item

    def metered_concat(self, *values: object) -> str:
        """Join texts, the operator ``~``."""
        self._budget.allow(sum(map(self._budget.text_size, values)))
        return self._budget.charge("".join(map(str, values)))

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
        """Join what a macro or a captured block wrote."""
        pieces = list(pieces)
        self._budget.allow(sum(map(len, pieces)))
        return self._budget.charge("".join(pieces))

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
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            args = __self._checked_method(owner, __obj.__name__, args, kwargs)
        return budget.charge(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Value, right: Value) -> Value:
        """Apply an operator."""
        self._budget.tick()
        _OPERATORS[operator](self._budget, left, right)
        return self._budget.charge(super().call_binop(context, operator, left, right))

    def is_safe_attribute(self, obj: Value, attr: str, value: Value) -> bool:
        """Refuse methods of numbers and bytes, and those of text that are of no use here."""
        if isinstance(obj, int | float | complex | bytes | bytearray):
            return False
        if isinstance(obj, str) and attr in _REMOVED_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Value) -> Callable[..., str] | None:
        """Wrap ``str.format`` as the sandbox does, with an estimate before."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        @functools.wraps(wrapped)
        def metered(*args: object, **kwargs: object) -> str:
            self._budget.allow(ESTIMATES["format"](value.__self__, *args, **kwargs))
            return self._budget.charge(wrapped(*args, **kwargs))

        return metered

    def _checked_method(
        self, text: str, name: str, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> tuple[Value, ...]:
        if name == "join" and args:
            items = list(args[0])
            args = (items, *args[1:])
            self._budget.allow(self._budget.text_size(items) + len(text) * len(items))
        elif name in ESTIMATES and name != "indent":
            self._budget.allow(ESTIMATES[name](text, *args, **kwargs))
        return args

    def _shown(self, value: object) -> object:
        self._budget.allow_text(value)
        return value

    def _metered_filter(self, name: str, function: Callable[..., Value]) -> Callable[..., Value]:
        passed = 1 if hasattr(function, "jinja_pass_arg") else 0
        estimate = ESTIMATES.get(name)

        @functools.wraps(function)
        def metered(*args: Value, **kwargs: Value) -> Value:
            self._budget.tick()
            value, *rest = args[passed:]
            if name in _TEXT_FILTERS:
                self._budget.allow_text(value)
            if estimate is not None:
                self._budget.allow(estimate(_text(value, name), *rest, **kwargs))
            return self._budget.charge(function(*args, **kwargs))

        return metered

    def _join_filter(self, original: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(original)
        def join(
            context: object, value: Iterable[object], d: object = "", attribute: Value = None
        ) -> str:
            items = list(value)
            between = self._budget.text_size(d) * len(items)
            self._budget.allow(self._budget.text_size(items) + between)
            return original(context, items, d, attribute)

        return join

    def _sum(
        self, values: Iterable[Value], attribute: str | int | None = None, start: Value = 0
    ) -> Value:
        total = start
        for value in values:
            self._budget.tick()
            term = value if attribute is None else self.getitem(value, attribute)
            _OPERATORS["+"](self._budget, total, term)
            total = self._budget.charge(total + term)
        return total

    def _to_json(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Write JSON as Hugging Face's templates expect: unescaped, not made safe for HTML."""
        if indent is not None and not 0 <= indent <= _MAX_JSON_INDENT:
            raise TemplateError(
                f"chat template: tojson indents by {indent}, needs 0 to {_MAX_JSON_INDENT}"
            )
        self._budget.allow_text(value)
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )


def _text(value: object, name: str) -> str:
    """Text that a filter will work on; `batch`, `slice` and `round` work on no text."""
    if name in _TEXT_FILTERS and not isinstance(value, str):
        return str(value)
    return cast("str", value)


def _check_add(budget: Budget, left: object, right: object) -> None:
    if isinstance(left, str) and isinstance(right, str):
        budget.allow(len(left) + len(right))


def _check_multiply(budget: Budget, left: object, right: object) -> None:
    for value, count in ((left, right), (right, left)):
        if isinstance(count, int) and isinstance(value, str | bytes | list | tuple):
            budget.allow(len(cast("str", value)) * count)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def _check_power(budget: Budget, left: object, right: object) -> None:
    del budget
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * abs(right))


def _check_modulo(budget: Budget, left: object, right: object) -> None:
    if isinstance(left, str | bytes):
        arguments = cast("tuple[object, ...]", right) if isinstance(right, tuple) else (right,)
        budget.allow(ESTIMATES["format"](str(left), *arguments))


def _check_bits(bits: int) -> None:
    if bits > _MAX_INTEGER_BITS:
        raise TemplateError(
            f"chat template: makes a number of {bits} bits, needs at most {_MAX_INTEGER_BITS}"
        )


_OPERATORS: dict[str, Callable[[Budget, object, object], None]] = {
    "+": _check_add,
    "*": _check_multiply,
    "**": _check_power,
    "%": _check_modulo,
}

Code = Value
"""A compiled template: Python's code object, which Jinja's types call Value."""


def load(code: CodeType, budget: Budget) -> jinja2.Template:
    """Make a template of compiled code that uses a budget of its own."""
    sandbox = Sandbox(budget)
    return sandbox.template_class.from_code(sandbox, code, sandbox.make_globals(None))
