"""The nesting depth of WGSL: brackets, expressions, and branches inside branches.

Compilers descend once for each of these, so a text's depth is what their stacks must hold. All of
it is found in one look from the front to the back, and with the place where it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# `<` opens a template after a word without a space, which is how types are written.
_BRACKET = re.compile(r"[()\[\]{};]|(?<=\w)<(?!=)|>")
_COMMENT = re.compile(r"//[^\n\r\v\f\x85\u2028\u2029]*|/\*|\*/")
# Without `<` and `>`: comparisons do not chain, and most angle brackets belong to types.
_EXPRESSION = re.compile(r"[()\[\]{};,]|&&|\|\||<<|>>|[-+*/%&|^!~]|\.(?=[^\W\d])")
_BRANCH = re.compile(
    r"[{}]|\b(?:if|else|switch|case|default|for|while|loop|return|break|continue)\b"
)


@dataclass(frozen=True, slots=True)
class Depth:
    """The depth of a text, and the character where it is deepest."""

    levels: int
    at: int = 0


def blank_comments(text: str) -> str:
    """Return WGSL with blanks for its comments, so that places stay."""
    pieces: list[str] = []
    # `depth` counts open block comments, which nest in WGSL.
    depth = end = 0
    for found in _COMMENT.finditer(text):
        if found.start() < end or (found[0] == "*/" and not depth):
            continue
        between = text[end : found.start()]
        if found[0].startswith("//"):
            # Two slashes inside a block comment do not begin another comment.
            if depth:
                continue
            pieces += [between, " " * len(found[0])]
        elif found[0] == "/*":
            pieces += [_blank(between) if depth else between, "  "]
            depth += 1
        else:
            pieces += [_blank(between), "  "]
            depth -= 1
        end = found.end()
    return "".join([*pieces, _blank(text[end:]) if depth else text[end:]])


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def bracket_depth(text: str) -> Depth:
    """Measure the depth of brackets; a statement's end closes the templates left open."""
    depth = templates = 0
    deepest = Depth(0)
    for found in _BRACKET.finditer(text):
        mark = found[0]
        depth += (mark in "([{") - (mark in ")]}")
        templates = max(0, templates + (mark == "<") - (mark == ">"))
        if mark in "{};":
            templates = 0
        if depth + templates > deepest.levels:
            deepest = Depth(depth + templates, found.start())
    return deepest


def bracket_levels(text: str) -> int:
    """Return how deep brackets nest."""
    return bracket_depth(text).levels


@dataclass(slots=True)
class _Group:
    """The text between two brackets, as far as it was read."""

    operators: int = 0  # since the last comma
    operand: int = 0  # members, indices and calls since the last operator
    inside: int = 0  # depth of the deepest operand since the last comma
    deepest: int = 0  # of what is between two commas

    def end_argument(self) -> None:
        self.deepest = max(self.deepest, self.operators + self.inside)
        self.operators = self.operand = self.inside = 0

    def add_operator(self) -> None:
        self.operators += 1
        self.operand = 0

    def add_to_operand(self, depth: int) -> None:
        self.operand += 1
        self.inside = max(self.inside, self.operand + depth)


def expression_depth(text: str) -> Depth:
    """Measure the deepest expression: operators, members and brackets inside each other.

    ``a + b + c`` is two deep, since the first sum is inside the second. Arguments of a call stand
    side by side.
    """
    groups = [_Group()]
    deepest = Depth(0)
    for found in _EXPRESSION.finditer(text):
        mark = found[0]
        if mark in "([":
            groups.append(_Group())
        elif mark in ")]" and len(groups) > 1:
            done = groups.pop()
            done.end_argument()
            groups[-1].add_to_operand(done.deepest)
        elif mark == ",":
            groups[-1].end_argument()
        elif mark in "{};":
            groups[0].end_argument()
            if groups[0].deepest > deepest.levels:
                deepest = Depth(groups[0].deepest, found.start())
            groups = [_Group()]
        elif mark == ".":
            groups[-1].add_to_operand(0)
        elif mark not in ")]":
            groups[-1].add_operator()
    return deepest


@dataclass(slots=True)
class _Block:
    """A block that is open."""

    weight: int  # branches that its own head adds to the depth
    kind: str = ""  # "loop" or "switch"; empty for other blocks
    cases: int = 0  # cases of a switch so far
    left: int = 0  # jumps out of it so far; the code after each is one branch deeper


@dataclass(slots=True)
class _Branches:
    """A scan of branches, from start to end."""

    llvm: bool
    blocks: list[_Block] = field(default_factory=list[_Block])
    depth: int = 0
    pending: _Block = field(default_factory=lambda: _Block(0))
    closed: int = 0  # weight of the block that was closed last
    after_else: bool = False

    def see(self, mark: str) -> None:
        """Process the next word or brace."""
        if mark == "else":
            self.pending = _Block(self.closed)
        elif mark == "if":
            self.pending = _Block(self.closed + 1 if self.after_else else 1)
        elif mark == "switch":
            self.pending = _Block(0, "switch")
        elif mark in ("for", "while", "loop"):
            self.pending = _Block(0, "loop")
        elif mark in ("case", "default"):
            self._see_case()
        elif mark == "{":
            self.blocks.append(self.pending)
            self.depth += self.pending.weight
            self.pending = _Block(0)
        elif mark in ("return", "break", "continue"):
            self._see_jump(mark)
        elif self.blocks:
            block = self.blocks.pop()
            self.depth -= block.weight + block.left
            self.closed = block.weight
        self.after_else = mark == "else"

    def _see_case(self) -> None:
        if self.blocks and self.blocks[-1].kind == "switch" and not self.pending.weight:
            self.blocks[-1].cases += 1
            self.pending = _Block(self.blocks[-1].cases if self.llvm else 1)

    def _see_jump(self, mark: str) -> None:
        """Count a jump out of a branch towards the block it leaves: function, loop or switch."""
        kinds = [block.kind for block in self.blocks]
        left = 0
        if mark == "continue":
            left = max((i for i, kind in enumerate(kinds) if kind == "loop"), default=0)
        elif mark == "break":
            left = max((i for i, kind in enumerate(kinds) if kind), default=0)
            if not kinds or kinds[left] != "switch":
                return
            left += 1
        if self.llvm and left < len(self.blocks) - 1:
            self.blocks[left].left += 1
            self.depth += 1


def branch_depth(text: str, *, llvm: bool) -> Depth:
    """Measure the depth of branches; an `else if` is inside the `if` before it.

    Parameters
    ----------
    text : str
        Without comments.
    llvm : bool
        Count as LLVM's rasteriser does: a case is inside of those before it, and the code after a
        jump out of a branch is inside of another.
    """
    state, deepest = _Branches(llvm), Depth(0)
    for found in _BRANCH.finditer(text):
        state.see(found[0])
        if state.depth > deepest.levels:
            deepest = Depth(state.depth, found.start())
    return deepest
