"""A translation of GBNF to llguidance's Lark: some parts are lexemes, the parser joins them.

llguidance splits a text into lexemes and takes each as far as it goes, so a lexeme that might have
ended earlier excludes texts; llama.cpp keeps all alternatives open. A rule that does not refer to
itself is a regular expression and can be one lexeme, which makes masks quick. If a lexeme may end
while it, or another one allowed at the same place, goes on with a character that may also follow,
the longer one is split. It is split by the word that the shorter one is (a name does not go on
after ``if``, or is ``if`` and the rest of a name), or else into its parts, down to single
characters, which are never ambiguous.

`compile_alone.py` runs this; see `gbnf.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from wgpu_backend.text.grammar.gbnf import (
    EMPTY,
    LAST,
    Alt,
    Chars,
    GbnfError,
    Node,
    Ref,
    Repeat,
    Seq,
    Token,
)

# Characters of a lexeme, with the rules it refers to written out.
_LARGEST = 20_000
# Steps of the search for conflicting lexemes.
_MOST_STEPS = 150_000
# Words that lexemes are split by.
_MOST_WORDS = 200
# Repetitions that the search follows one by one; a loop stands for the rest.
_UNROLLED = 3


def write_lark(rules: Mapping[str, Node], never: str = "") -> str:
    """Write rules from `parse_gbnf` as Lark.

    Parameters
    ----------
    rules : mapping
        Parsed rules by name.
    never : str
        Ids and ranges of tokens, separated by commas, that ``!<text>`` must not match either.

    Raises
    ------
    GbnfError
        No text fits the grammar.
    """
    fitting = _remove_impossible(rules)
    plan = _Plan(_reachable({name: _tail_loop(name, body) for name, body in fitting.items()}))
    plan.settle()
    return _write(plan, never)


# Simplification of the rules as they were written.


def _remove_impossible(rules: Mapping[str, Node]) -> dict[str, Node]:
    """Remove alternatives that no text fits."""
    able: set[str] = set()
    before = -1
    while len(able) > before:
        before = len(able)
        for name in reversed([*rules]):
            if name not in able and _cut(rules[name], able) is not None:
                able.add(name)
    if "root" not in able:
        raise GbnfError("no text can match it")
    found = {name: _cut(body, able) for name, body in rules.items() if name in able}
    return {name: body for name, body in found.items() if body is not None}


def _cut(node: Node, able: set[str]) -> Node | None:
    if isinstance(node, Seq):
        items = [_cut(item, able) for item in node.items]
        there = tuple(item for item in items if item is not None)
        return Seq(there) if len(there) == len(items) else None
    if isinstance(node, Alt):
        there = tuple(each for item in node.items if (each := _cut(item, able)) is not None)
        return _either(there) if there else None
    if isinstance(node, Repeat):
        item = _cut(node.item, able)
        if item is None:
            return EMPTY if node.least == 0 else None
        return Repeat(item, node.least, node.most)
    fits = node.name in able if isinstance(node, Ref) else isinstance(node, Token) or node.ranges
    return node if fits else None


def _either(items: tuple[Node, ...]) -> Node:
    return items[0] if len(items) == 1 else Alt(items)


def _reachable(rules: Mapping[str, Node]) -> dict[str, Node]:
    found: dict[str, Node] = {}
    waiting = ["root"]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = rules[name]
            waiting += _names(rules[name])
    return found


def _names(node: Node) -> list[str]:
    if isinstance(node, Ref):
        return [node.name]
    if isinstance(node, Repeat):
        return _names(node.item)
    return [name for item in _items(node) for name in _names(item)]


def _items(node: Node) -> tuple[Node, ...]:
    return node.items if isinstance(node, Seq | Alt) else ()


def _tail_loop(name: str, body: Node) -> Node:
    """Rewrite a rule that recurses only at its end as a repetition: ``ws ::= " " ws |``."""
    if name not in _names(body):
        return body
    loops: list[Node] = []
    ends: list[Node] = []
    for items in _expand(body, name):
        rest = items
        if items and isinstance(items[-1], Ref) and items[-1].name == name:
            rest = items[:-1]
            loops.append(Seq(rest))
        else:
            ends.append(Seq(rest))
        if any(name in _names(item) for item in rest):
            return body
    if not loops or not ends:
        return body
    return Seq((Repeat(_either(tuple(loops)), 0, None), _either(tuple(ends))))


def _expand(node: Node, name: str) -> Iterator[tuple[Node, ...]]:
    """Yield the sequences that a node stands for, as far as its end leads to a rule."""
    if name not in _names(node):
        yield (node,)
    elif isinstance(node, Alt):
        for item in node.items:
            yield from _expand(item, name)
    elif isinstance(node, Seq):
        for last in _expand(node.items[-1], name):
            yield (*node.items[:-1], *last)
    elif isinstance(node, Repeat) and (node.least, node.most) == (0, 1):
        yield ()
        yield from _expand(node.item, name)
    else:
        yield (node,)


def _sort_rules(rules: Mapping[str, Node]) -> tuple[list[str], set[str]]:
    """Sort rules so that referenced ones come first, and find recursive ones (Tarjan's SCCs)."""
    named = {name: _names(body) for name, body in rules.items()}
    index, low = {"root": 0}, {"root": 0}
    stack, open_, order = ["root"], {"root"}, list[str]()
    recursive: set[str] = set()
    waiting = [("root", iter(named["root"]))]
    while waiting:
        name, rest = waiting[-1]
        inner = next(rest, None)
        if inner is None:
            waiting.pop()
            if waiting:
                above = waiting[-1][0]
                low[above] = min(low[above], low[name])
            if low[name] == index[name]:
                ring = stack[stack.index(name) :]
                del stack[-len(ring) :]
                open_ -= {*ring}
                order += ring
                if len(ring) > 1 or name in named[name]:
                    recursive |= {*ring}
        elif inner not in index:
            index[inner] = low[inner] = len(index)
            stack.append(inner)
            open_.add(inner)
            waiting.append((inner, iter(named[inner])))
        elif inner in open_:
            low[name] = min(low[name], index[inner])
    return order, recursive


# Choice of the parts that are lexemes.


# The code points of a word.
_Word = tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Lexeme:
    """A regular part of rules that is one lexeme; equal expressions share one lexeme.

    No text of it goes on after one of the words `but`.
    """

    node: Node
    number: int
    key: str
    but: tuple[_Word, ...] = ()


@dataclass(slots=True, eq=False)
class _Part:
    """A part that the parser assembles from other parts."""

    node: Node
    inner: list[_Part | _Lexeme] = field(default_factory=list["_Part | _Lexeme"])


_Shape = _Part | _Lexeme


# Prefixes of the names of rules that replace a split lexeme, and the item of a repetition.
_PARTED = "parted "
_LOOP = "loop "


class _Plan:
    """The choice of lexemes: as large as possible without excluding texts."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self.rules = dict(rules)
        self.shapes: dict[str, _Shape] = {}
        self.lexemes: dict[str, _Lexeme] = {}
        order, recursive = _sort_rules(rules)
        self.numbers = {name: number for number, name in enumerate(order)}
        self._memo: dict[int, str] = {}
        self._broken: set[str] = set()
        # Words that a lexeme is split by.
        self._words: dict[str, list[_Word]] = {}
        self._parted: dict[str, Node] = {}
        self._rests: dict[tuple[str, _Word], Node | None] = {}
        self._begins: dict[_Word, Seq] = {}
        self._groups: dict[tuple[int, int], Node] = {}
        self._regular: dict[int, bool] = {}
        self._sizes: dict[str, int] = {}
        for name in order:
            size = _LARGEST + 1 if name in recursive else self._size(rules[name])
            if size <= _LARGEST and self._is_regular(rules[name]):
                self._sizes[name] = size

    def settle(self) -> None:
        """Split lexemes until none conflicts with another."""
        budget = [_MOST_STEPS]
        self._shape_all()
        while pairs := _Conflicts(self, budget).find():
            for shorter, longer in pairs:
                self._take_apart(longer, None if shorter is None else self.word(shorter))
            self._shape_all()

    def _take_apart(self, lexeme: _Lexeme, word: _Word | None) -> None:
        key = lexeme.key
        words = self._words.setdefault(key, [])
        many = sum(map(len, self._words.values())) >= _MOST_WORDS
        if word is None or many or (not lexeme.but and self.word(lexeme) is not None):
            self._broken.add(key)
        elif word not in words:
            words.append(word)

    def word(self, lexeme: _Lexeme) -> _Word | None:
        """Return the only text of a lexeme, or None if it has several."""
        return None if lexeme.but else _only(lexeme.node, self.rules)

    def expression(self, node: Node) -> str:
        """Return the Lark expression of a regular node."""
        found = self._memo.get(id(node))
        if found is None:
            plain = _regex(node)
            found = self._memo[id(node)] = f"/{plain}/" if plain else self.__compose_node(node)
        return found

    def body(self, node: Node) -> Node:
        """Return the node that a reference, or a node with a single item, leads to."""
        while True:
            if isinstance(node, Ref):
                node = self.rules[node.name]
            elif len(_items(node)) == 1:
                node = _items(node)[0]
            else:
                return node

    def __compose_node(self, node: Node) -> str:
        if isinstance(node, Ref):
            return f"N{self.numbers[node.name]}"
        return _compose(node, [self.expression(item) for item in _inner(node)])

    def _shape_all(self) -> None:
        self.lexemes, self.shapes = {}, {}
        waiting = ["root"]
        while waiting:
            name = waiting.pop()
            if name not in self.shapes:
                key = name[len(_PARTED) :] if name.startswith(_PARTED) else None
                self.shapes[name] = (
                    self._shape(self.rules[name]) if key is None else self._shape_parted(key)
                )
                self.numbers.setdefault(name, len(self.numbers))
                waiting += _refs(self.shapes[name])

    def _shape_parted(self, key: str) -> _Shape:
        """Split a lexeme: texts that do not continue certain words, or such a word and its rest."""
        node, words = self._parted[key], self._words[key]
        without = key + "".join(f" & ~(/{_spell(word)}(?s:.)+/)" for word in words)
        number = len(self.lexemes)
        whole = _Lexeme(node, number, key, (*words,))
        found: list[_Shape] = [self.lexemes.setdefault(without, whole)]
        for word in words:
            rest = self._rest(key, word)
            if rest is not None:
                begin = Seq(tuple(Chars(((code, code),)) for code in word))
                begin = self._begins.setdefault(word, begin)
                found.append(_Part(Seq((begin, rest)), [self._shape(begin), self._shape(rest)]))
        return _Part(Alt((node,)), found)

    def _rest(self, key: str, word: _Word) -> Node | None:
        if (key, word) not in self._rests:
            rest: Node | None = self._parted[key]
            for code in word:
                rest = None if rest is None else _derivative(rest, code, self.rules)
            self._rests[key, word] = rest
        return self._rests[key, word]

    def _is_regular(self, node: Node) -> bool:
        found = self._regular.get(id(node))
        if found is None:
            if isinstance(node, Ref):
                return node.name in self._sizes
            sound = not isinstance(node, Token) and all(map(self._is_regular, _inner(node)))
            found = self._regular[id(node)] = sound
        return found

    def _size(self, node: Node) -> int:
        if isinstance(node, Ref):
            found = self._sizes.get(node.name, _LARGEST + 1)
        else:
            found = sum(map(self._size, _inner(node))) or 1
        if isinstance(node, Repeat):
            found *= min(node.most or node.least + 1, _UNROLLED + 1)
        return min(found, _LARGEST + 1)

    def _shape(self, node: Node) -> _Shape:
        if self._is_regular(node):
            key = self.expression(node)
            if key in self._broken:
                return _Part(node, [*map(self._shape, _inner(node))])
            if self._words.get(key):
                self._parted.setdefault(key, node)
                return _Part(Ref(_PARTED + key))
            return self.lexemes.setdefault(key, _Lexeme(node, len(self.lexemes), key))
        inner = _inner(node)
        if isinstance(node, Seq):
            inner = tuple(self._group(node))
        elif isinstance(node, Alt):
            inner = self._merge(node)
        elif isinstance(node, Repeat):
            inner = (self._split_loop(node),)
        return _Part(node, [*map(self._shape, inner)])

    def _group(self, node: Seq) -> Iterator[Node]:
        """Yield the items of a sequence, with adjacent regular items joined."""
        at = 0
        while at < len(node.items):
            end = at
            while end < len(node.items) and self._is_regular(node.items[end]):
                end += 1
            if end > at + 1:
                yield self._groups.setdefault((id(node), at), Seq(node.items[at:end]))
            else:
                yield node.items[at]
            at = max(end, at + 1)

    def _merge(self, node: Alt) -> tuple[Node, ...]:
        """Return the alternatives, with the regular ones joined."""
        regular = tuple(item for item in node.items if self._is_regular(item))
        others = tuple(item for item in node.items if not self._is_regular(item))
        if not regular:
            return others
        return (self._groups.setdefault((id(node), 0), _either(regular)), *others)

    def _split_loop(self, node: Repeat) -> Node:
        """Return the item of a loop, with its regular alternatives moved into a loop of their own.

        ``([a-z] | "(" root ")")*`` then has one lexeme for a run of letters.
        """
        body = self.body(node.item)
        if node.most is not None or node.least > 1 or not isinstance(body, Alt):
            return node.item
        if (id(node), 0) not in self._groups:
            first, *others = self._merge(body)
            if self._is_regular(first):
                first = Repeat(first, 1, None)
            # A rule, since a rule that refers to itself may have this repetition inside its item.
            name = f"{_LOOP}{len(self.rules)}"
            self.rules[name] = _either((first, *others))
            self._groups[id(node), 0] = Ref(name)
        return self._groups[id(node), 0]


def _inner(node: Node) -> tuple[Node, ...]:
    return (node.item,) if isinstance(node, Repeat) else _items(node)


def _refs(shape: _Shape) -> list[str]:
    if isinstance(shape, _Lexeme):
        return []
    if isinstance(shape.node, Ref):
        return [shape.node.name]
    return [name for each in shape.inner for name in _refs(each)]


class _Conflicts:
    """A search for lexemes that go on where another one may end and something else follows.

    A set of lexemes is a bit mask. A set of characters is one as well, with a bit for each range
    that the grammar's character classes do not divide.
    """

    def __init__(self, plan: _Plan, budget: list[int]) -> None:
        self._plan, self._budget = plan, budget
        self._keys = [*plan.lexemes]
        # One bit stands for all tokens: they have no characters.
        self._token = 1 << len(self._keys)
        self._first: dict[str, tuple[int, bool]] = dict.fromkeys(plan.shapes, (0, False))
        self._after: dict[str, int] = dict.fromkeys(plan.shapes, 0)
        self._next = [0] * (len(self._keys) + 1)
        self._empty = {k: _may_be_empty(x.node, plan.rules) for k, x in plan.lexemes.items()}
        self._chars: list[int] = []
        self._follow: list[set[int]] = []
        self._owner: list[int] = []
        self._ends: list[bool] = []

    def find(self) -> list[tuple[_Lexeme | None, _Lexeme]]:
        """Return the lexemes to split, each with the lexeme it conflicts with if that is known."""
        self._find_neighbours()
        if not any(self._next):
            return []
        if self._budget[0] > 0:
            try:
                return self._find_pairs()
            except _TooCostlyError:
                self._budget[0] = 0
        lexemes = self._plan.lexemes.values()
        return [(None, x) for x in lexemes if not isinstance(self._plan.body(x.node), Chars)]

    # Adjacency of lexemes.

    def _find_neighbours(self) -> None:
        shapes = self._plan.shapes
        before: object = None
        while before != self._first:
            before = {**self._first}
            self._first = {name: self._begin(shape) for name, shape in shapes.items()}
        before = None
        while before != self._after:
            before = {**self._after}
            for name, shape in shapes.items():
                after = self._after[name]
                if name.startswith(_LOOP):
                    self._walk_again(shape, after, self._first[name][0], endless=True)
                else:
                    self._walk(shape, after)

    def _begin(self, shape: _Shape) -> tuple[int, bool]:
        """Return the lexemes that a part may begin with, and whether the part may be empty."""
        if isinstance(shape, _Lexeme):
            return 1 << shape.number, self._empty[self._keys[shape.number]]
        node = shape.node
        if isinstance(node, Ref):
            return self._first[node.name]
        if isinstance(node, Token):
            return self._token, False
        parts = [self._begin(each) for each in shape.inner]
        if isinstance(node, Alt):
            return _union(mask for mask, _ in parts), any(empty for _, empty in parts)
        if isinstance(node, Repeat):
            return parts[0][0], parts[0][1] or node.least == 0
        found = 0
        for mask, empty in parts:
            found |= mask
            if not empty:
                return found, False
        return found, True

    def _walk(self, shape: _Shape, after: int) -> None:
        """Record the lexemes after each lexeme of a part, if those in `after` follow the part."""
        if isinstance(shape, _Lexeme):
            self._next[shape.number] |= after
            return
        node = shape.node
        if isinstance(node, Ref):
            self._after[node.name] |= after
        elif isinstance(node, Token):
            self._next[-1] |= after
        elif isinstance(node, Repeat):
            self._walk_repeat(node, shape.inner[0], after)
        elif isinstance(node, Alt):
            for each in shape.inner:
                self._walk(each, after)
        else:
            for each in reversed(shape.inner):
                self._walk(each, after)
                mask, empty = self._begin(each)
                after = mask | after if empty else mask

    def _walk_repeat(self, node: Repeat, inner: _Shape, after: int) -> None:
        if node.most == 1:
            self._walk(inner, after)
        elif isinstance(inner.node, Ref) and inner.node.name.startswith(_LOOP):
            self._after[inner.node.name] |= after
        else:
            endless = node.most is None and node.least <= 1
            self._walk_again(inner, after, self._begin(inner)[0], endless=endless)

    def _walk_again(self, inner: _Shape, after: int, again: int, *, endless: bool) -> None:
        """Walk a part that may repeat: `after` follows it, or the part itself once more."""
        is_alt = isinstance(inner, _Part) and isinstance(inner.node, Alt)
        for each in inner.inner if isinstance(inner, _Part) and is_alt else [inner]:
            more = again
            if endless and isinstance(each, _Lexeme):
                loop = self._plan.body(each.node)
                if isinstance(loop, Repeat) and loop.most is None and loop.least <= 1:
                    # Two of them in a row are one lexeme, so this excludes no text.
                    more &= ~(1 << each.number)
            self._walk(each, after | more)

    # Overlap of lexemes.

    def _find_pairs(self) -> list[tuple[_Lexeme | None, _Lexeme]]:
        firsts = self._positions()
        seen = [*self._states({p for each in firsts for p in each})]
        same = [1 << i for i in range(len(self._next))]
        for ends, _ in seen:
            for number in _bits(ends):
                same[number] |= ends
        rivals = self._find_rivals(same)
        begin = [_union(self._chars[p] for p in each) for each in firsts]
        follows = [_union(begin[i] for i in _bits(each & ~self._token)) for each in self._next]
        pairs = {
            (number, other)
            for ends, goes_on in seen
            for number in _bits(ends)
            for other, chars in goes_on.items()
            if rivals[number] >> other & 1 and chars & follows[number]
        }
        lexemes = [*self._plan.lexemes.values()]
        found = [(lexemes[one], lexemes[other]) for one, other in sorted(pairs)]
        return [(a, b) for a, b in found if not b.but or self._plan.word(a) not in b.but]

    def _find_rivals(self, same: list[int]) -> list[int]:
        """Return, for each lexeme, those that may stand at the same place."""
        rivals = [0] * len(self._next)
        start = self._first["root"][0]
        waiting = [(start, start)]
        done: set[tuple[int, int]] = set()
        while waiting:
            while waiting:
                one, other = waiting.pop()
                for number in _bits(one):
                    rivals[number] |= other
                for number in _bits(other):
                    rivals[number] |= one
            for one in range(len(rivals)):
                for other in _bits(rivals[one] & same[one]):
                    if (one, other) not in done:
                        self._spend(1)
                        done.add((one, other))
                        waiting.append((self._next[one], self._next[other]))
        return rivals

    def _positions(self) -> list[set[int]]:
        """Find the positions of all characters of lexemes (Glushkov); return each first set."""
        marks = {LAST + 1}
        for body in self._plan.rules.values():
            marks |= {end for low, high in _ranges(body) for end in (low, high + 1)}
        self._marks = sorted(marks)
        firsts: list[set[int]] = []
        for lexeme in self._plan.lexemes.values():
            first, last, _ = self._build(lexeme.node, lexeme.number)
            firsts.append(first)
            for place in last:
                self._ends[place] = True
        return firsts

    def _build(self, node: Node, owner: int) -> tuple[set[int], set[int], bool]:
        self._spend(1)
        if isinstance(node, Ref):
            return self._build(self._plan.rules[node.name], owner)
        if isinstance(node, Chars):
            self._chars.append(_union(map(self._mask, node.ranges)))
            self._follow.append(set())
            self._owner.append(owner)
            self._ends.append(False)
            place = len(self._chars) - 1
            return {place}, {place}, False
        if isinstance(node, Repeat):
            return self._build_repeat(node, owner)
        parts = [self._build(item, owner) for item in _items(node)]
        if isinstance(node, Alt):
            first = {p for part in parts for p in part[0]}
            return first, {p for part in parts for p in part[1]}, any(part[2] for part in parts)
        return self._chain(parts)

    def _build_repeat(self, node: Repeat, owner: int) -> tuple[set[int], set[int], bool]:
        most = node.most if node.most is not None and node.most <= _UNROLLED else None
        least = min(node.least, _UNROLLED)
        count = max(least, 1) if most is None else most
        parts = [self._build(node.item, owner) for _ in range(count)]
        if most is None:
            self._link(parts[-1][1], parts[-1][0])
        parts = [(a, b, empty or i >= least) for i, (a, b, empty) in enumerate(parts)]
        return self._chain(parts)

    def _chain(
        self, parts: list[tuple[set[int], set[int], bool]]
    ) -> tuple[set[int], set[int], bool]:
        first: set[int] = set()
        last: set[int] = set()
        empty = True
        for begin, end, may in parts:
            self._link(last, begin)
            first |= begin if empty else set()
            last = last | end if may else end
            empty = empty and may
        return first, last, empty

    def _link(self, places: set[int], after: set[int]) -> None:
        self._spend(len(places))
        for place in places:
            self._follow[place] |= after

    def _mask(self, ends: tuple[int, int]) -> int:
        low, high = (bisect_left(self._marks, mark) for mark in (ends[0], ends[1] + 1))
        return (1 << high) - (1 << low)

    def _states(self, start: set[int]) -> Iterator[tuple[int, dict[int, int]]]:
        """Yield, per reachable set of places, the lexemes that end and those that go on."""
        waiting = [(frozenset[int](), start)]
        done = {waiting[0][0]}
        while waiting:
            places, after = waiting.pop()
            self._spend(len(after) + 1)
            goes_on: dict[int, int] = {}
            for place in after:
                owner = self._owner[place]
                goes_on[owner] = goes_on.get(owner, 0) | self._chars[place]
            ends = _union(1 << self._owner[p] for p in places if self._ends[p])
            if ends:
                yield ends, goes_on
            for part in self._partition(after):
                reached = frozenset(p for p in after if self._chars[p] & part)
                self._spend(len(after))
                if reached not in done:
                    done.add(reached)
                    waiting.append((reached, {q for p in reached for q in self._follow[p]}))

    def _partition(self, places: set[int]) -> list[int]:
        """Split the characters of places into groups that lead on in the same way."""
        parts: list[int] = []
        for mask in {self._chars[place] for place in places}:
            self._spend(len(parts))
            rest, cut = mask, list[int]()
            for part in parts:
                cut += [each for each in (part & mask, part & ~mask) if each]
                rest &= ~part
            parts = [*cut, rest] if rest else cut
        return parts

    def _spend(self, steps: int) -> None:
        self._budget[0] -= steps
        if self._budget[0] < 0:
            raise _TooCostlyError


def _only(node: Node, rules: Mapping[str, Node]) -> _Word | None:
    """Return the only text of a node, or None if it has several or an empty one."""
    if isinstance(node, Ref):
        return _only(rules[node.name], rules)
    if isinstance(node, Chars):
        low, high = node.ranges[0]
        return (low,) if len(node.ranges) == 1 and low == high else None
    items = _items(node)
    if not items or (isinstance(node, Alt) and len(items) > 1):
        return None
    parts = [_only(item, rules) for item in items]
    there = [part for part in parts if part is not None]
    return tuple(code for part in there for code in part) if len(there) == len(parts) else None


def _derivative(node: Node, code: int, rules: Mapping[str, Node]) -> Node | None:
    """Return what may follow a character at the beginning of a regular node (Brzozowski)."""
    if isinstance(node, Ref):
        return _derivative(rules[node.name], code, rules)
    if isinstance(node, Chars):
        return EMPTY if any(low <= code <= high for low, high in node.ranges) else None
    if isinstance(node, Repeat):
        rest = _derivative(node.item, code, rules)
        most = None if node.most is None else node.most - 1
        more = EMPTY if most == 0 else Repeat(node.item, max(node.least - 1, 0), most)
        return None if rest is None else _join((rest, more))
    found: list[Node] = []
    for at, item in enumerate(_items(node)):
        rest = _derivative(item, code, rules)
        if rest is not None:
            after = _items(node)[at + 1 :] if isinstance(node, Seq) else ()
            found.append(_join((rest, *after)))
        if isinstance(node, Seq) and not _may_be_empty(item, rules):
            break
    return _either(tuple(found)) if found else None


def _join(items: tuple[Node, ...]) -> Node:
    there = tuple(item for item in items if not (isinstance(item, Seq) and not item.items))
    return there[0] if len(there) == 1 else Seq(there)


def _may_be_empty(node: Node, rules: Mapping[str, Node]) -> bool:
    if isinstance(node, Ref):
        return _may_be_empty(rules[node.name], rules)
    if isinstance(node, Repeat):
        return node.least == 0 or _may_be_empty(node.item, rules)
    if isinstance(node, Alt):
        return any(_may_be_empty(item, rules) for item in node.items)
    return isinstance(node, Seq) and all(_may_be_empty(item, rules) for item in node.items)


class _TooCostlyError(Exception):
    """An interruption of a search that takes too many steps."""


def _ranges(node: Node) -> Iterator[tuple[int, int]]:
    if isinstance(node, Chars):
        yield from node.ranges
    for item in _inner(node):
        yield from _ranges(item)


def _union(masks: Iterator[int] | map[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


# Output as Lark.


def _write(plan: _Plan, never: str) -> str:
    lines = [f"start: r{plan.numbers['root']}"]
    for name, shape in plan.shapes.items():
        lines.append(f"r{plan.numbers[name]}: {_rule(plan, shape, never)}")
    lines += [f"T{x.number}: {key}" for key, x in plan.lexemes.items()]
    waiting = [name for x in plan.lexemes.values() for name in _names(x.node)]
    done: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in done:
            done.add(name)
            lines.append(f"N{plan.numbers[name]}: {plan.expression(plan.rules[name])}")
            waiting += _names(plan.rules[name])
    return "\n".join(lines) + "\n"


def _rule(plan: _Plan, shape: _Shape, never: str) -> str:
    if isinstance(shape, _Lexeme):
        return f"T{shape.number}"
    node = shape.node
    if isinstance(node, Ref):
        return f"r{plan.numbers[node.name]}"
    if isinstance(node, Token):
        return f"<[^{node.id}{never and ',' + never}]>" if node.but else f"<[{node.id}]>"
    return _compose(node, [_rule(plan, each, never) for each in shape.inner])


def _compose(node: Node, inner: list[str]) -> str:
    """Return the Lark of a node from the Lark of its items."""
    if isinstance(node, Repeat):
        return f"({inner[0]}){_times(node)}"
    if len(inner) == 1:
        return inner[0]
    if isinstance(node, Alt):
        return f"({' | '.join(inner)})"
    return f"({' '.join(inner)})" if inner else '""'


def _times(node: Repeat) -> str:
    if node.most is None:
        return {0: "*", 1: "+"}.get(node.least, f"{{{node.least},}}")
    return f"{{{node.least}}}" if node.least == node.most else f"{{{node.least},{node.most}}}"


def _regex(node: Node) -> str | None:
    """Return the regular expression of a node, or None if it names a rule."""
    if isinstance(node, Chars):
        if len(node.ranges) == 1 and node.ranges[0][0] == node.ranges[0][1]:
            return _escape(node.ranges[0][0])
        return f"[{''.join(f'{_escape(a)}-{_escape(b)}' for a, b in node.ranges)}]"
    parts = [_regex(item) for item in _inner(node)]
    if isinstance(node, Ref | Token) or None in parts:
        return None
    there = [part for part in parts if part is not None]
    if isinstance(node, Alt):
        return f"(?:{'|'.join(there)})"
    if isinstance(node, Repeat):
        return f"(?:{there[0]}){_times(node)}"
    return "".join(there)


def _spell(word: _Word) -> str:
    return "".join(map(_escape, word))


def _escape(code: int) -> str:
    return f"\\x{{{code:X}}}"
