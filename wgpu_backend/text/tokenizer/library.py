"""Tokenizers that a tokenizer.json describes, run by the library whose format it is.

The library does what the file says. Two things are done differently here: a text that a user wrote
never becomes a control token, and text that goes on from other text has nothing put before it. For
these the library's steps are called one by one: added tokens are found, the stretches between them
normalised, those added tokens found that are matched in normalised text, the rest encoded.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from tokenizers import AddedToken, Tokenizer, models

from wgpu_backend.errors import TokenizerError
from wgpu_backend.text.tokenizer.encoders import is_library_failure
from wgpu_backend.text.tokenizer.pretokenizers import FASTER
from wgpu_backend.text.tokenizer.shield import MARK, Shield
from wgpu_backend.text.tokenizer.vocabulary import TokenType

KEY = "tokenizer.huggingface.json"
"""Where a GGUF file has the text of a tokenizer.json."""
LIBRARY = "huggingface"
"""What ``tokenizer.ggml.model`` is where GGUF has no name for what the file says."""

_STAND_IN = 1 << 31  # an id that no token has
_FLAGS = ("single_word", "lstrip", "rstrip")
_LISTS = ("normalizers", "pretokenizers", "decoders", "processors")
_SECTIONS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_TINY = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}

Step = Mapping[str, Any]


class LibraryTokenizer:
    """A tokenizer.json.

    Parameters
    ----------
    text : str
        What the file holds.
    control : frozenset of int
        Ids that no text of a user may become.
    tokens : int
        Tokens there are; the file may name no more.

    Raises
    ------
    TokenizerError
        The library cannot use it, or it has an id that no token has.
    """

    def __init__(self, text: str, control: frozenset[int], tokens: int) -> None:
        try:
            given = cast("dict[str, Any]", json.loads(text))
            if cuts := given.get("pre_tokenizer"):
                given["pre_tokenizer"] = _changed(cuts, _faster)
            self._whole = built(given)
        except (ValueError, TypeError, RecursionError, TokenizerError) as error:
            raise TokenizerError(f"{KEY}: {error}") from None
        highest = max(self._whole.get_vocab().values(), default=0)
        if highest >= tokens:
            raise TokenizerError(f"{KEY}: highest id is {highest}, needs ids below {tokens}")
        self._text = text
        self._control = control - {_unknown(given["model"])}
        self._json = given | {"model": None}  # whose vocabulary would be here once more
        self._added: list[tuple[Step, str, int]] = [
            (token, self._matched(token), cast("int", self._whole.token_to_id(token["content"])))
            for token in cast("list[dict[str, Any]]", self._json.get("added_tokens") or [])
        ]
        self.byte_level = any(
            step.get("type") == "ByteLevel"
            for name in ("decoder", "pre_tokenizer", "normalizer")
            for step in walked(self._json.get(name))
        )
        self._spelled = _spelling(self._json.get("decoder"))

    def encode(self, text: str, *, parse: bool, shield: Shield | None = None) -> list[int]:
        """Ids of a text, without those that are put around it.

        Parameters
        ----------
        text : str
            Without lone surrogates.
        parse : bool
            Control tokens that the text spells become those tokens.
        shield : Shield, optional
            It has marked the text.
        """
        if shield is None:
            ids = self._whole.encode(text, add_special_tokens=False).ids
            if parse or self._control.isdisjoint(ids):
                return ids
        return self._stepwise(text, self._parsing if parse else self._plain, self._steps, shield)

    def encode_further(self, text: str) -> list[int]:
        """Ids of text that goes on from other text."""
        return self._stepwise(text, self._plain, self._going_on, None)

    def wrapped(self, ids: list[int]) -> list[int]:
        """Ids of a text with those that the file puts around it."""
        return _filled(self._around_one[0], ids, [])

    def pair(self, first: list[int], second: list[int]) -> tuple[list[int], list[int]]:
        """Ids of two texts as the file puts them together, and the type of each."""
        places, types = self._around_two
        lengths = {_STAND_IN: len(first), _STAND_IN + 1: len(second)}
        spread = [
            kind
            for place, kind in zip(places, types, strict=True)
            for _ in range(lengths.get(place, 1))
        ]
        return _filled(places, first, second), spread

    def _matched(self, token: Step) -> str:
        """Text of an added token as it is looked for."""
        normaliser = self._whole.normalizer if token["normalized"] else None
        return (
            token["content"] if normaliser is None else normaliser.normalize_str(token["content"])
        )

    def spelled(self, texts: Sequence[str], types: Sequence[int]) -> list[str]:
        """Texts of tokens as a decoder joins them, ``▁`` for a space."""
        return [
            self._spelled(text) if kind == TokenType.NORMAL else text
            for text, kind in zip(texts, types, strict=True)
        ]

    @property
    def begins_with_space(self) -> bool:
        """Whether the first token's text is spelled with a space that is not the author's."""
        return self._spelled("a") != "a"

    def becomes_control(self, text: str) -> bool:
        """Whether a text spells control tokens once it is normalised."""
        if not self._normal_control:
            return False
        stretches = [each for _, each in self._parsing.raw.split(text) if isinstance(each, str)]
        return any(
            isinstance(piece, int) and piece in self._control
            for stretch in stretches
            for _, piece in self._parsing.normalised.split(self._steps.normalise(stretch))
        )

    def may_be_marked(self, text: str) -> bool:
        """Whether a text may have marks all over, as one that `becomes_control`."""
        return self._normal_control and MARK in text

    @cached_property
    def _has_letters(self) -> bool:
        """Whether a control token is one character once normalised, which no mark parts."""
        return any(
            token["normalized"] and i in self._control and len(text) < 2
            for token, text, i in self._added
        )

    @cached_property
    def _normal_control(self) -> bool:
        """Whether control tokens are found in normalised text; few files have such."""
        return any(token["normalized"] and i in self._control for token, _, i in self._added)

    @cached_property
    def _around_one(self) -> tuple[list[int], list[int]]:
        return self._ids_around()

    @cached_property
    def _around_two(self) -> tuple[list[int], list[int]]:
        return self._ids_around("B")

    def _ids_around(self, second: str | None = None) -> tuple[list[int], list[int]]:
        """Ids and types of a text of one token, or of two."""
        ids = {"A": _STAND_IN, "B": _STAND_IN + 1}
        backend = Tokenizer(models.WordLevel(ids, unk_token="A"))
        backend.post_processor = self._whole.post_processor
        made = backend.encode("A", second)
        return made.ids, made.type_ids

    def _stepwise(
        self, text: str, added: _Added, steps: _Steps, shield: Shield | None
    ) -> list[int]:
        ids: list[int] = []
        for start, stretch in added.raw.split(text):
            if isinstance(stretch, int):
                ids.append(stretch)
                continue
            pieces = list(self._normalised(stretch, added, steps, shield))
            if not any(isinstance(piece, int) for _, piece in pieces):
                bare = shield.unmarked(stretch) if shield else stretch
                ids += self._typed(bare, steps.whole[start > 0])
                continue
            for place, piece in pieces:
                if isinstance(piece, int):
                    ids.append(piece)
                else:
                    ids += self._typed(piece, steps.cut[start + place > 0])
        return ids

    def _normalised(
        self, text: str, added: _Added, steps: _Steps, shield: Shield | None
    ) -> Iterator[tuple[int, str | int]]:
        """Stretches of a text and added tokens, after normalising; no marks are left."""
        if shield is None:
            yield from added.normalised.split(steps.normalise(text))
            return
        bare = steps.normalise(shield.unmarked(text))
        marked = steps.normalise(text)
        marks = len(text) - len(shield.unmarked(text))
        kept = len(marked) - len(bare) == marks and shield.unmarked(marked) == bare
        if not kept or self._has_letters:  # marks do not stand what is done, or have no place
            yield from self._plain.normalised.split(bare)
            return
        for place, piece in added.normalised.split(marked):
            yield place, piece if isinstance(piece, int) else shield.unmarked(piece)

    def _typed(self, text: str, backend: Tokenizer) -> list[int]:
        """Ids of a stretch that somebody typed; the model knows no control tokens for it."""
        ids = backend.encode(text, add_special_tokens=False).ids
        if self._control.isdisjoint(ids):
            return ids
        without = Tokenizer(self._without_control)
        if backend.normalizer is not None:
            without.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            without.pre_tokenizer = backend.pre_tokenizer
        return without.encode(text, add_special_tokens=False).ids

    @cached_property
    def _parsing(self) -> _Added:
        return _Added(self._added)

    @cached_property
    def _plain(self) -> _Added:
        return _Added([t for t in self._added if t[2] not in self._control])

    @cached_property
    def _steps(self) -> _Steps:
        return self._made(_same, _not_first)

    @cached_property
    def _going_on(self) -> _Steps:
        return self._made(_nothing_before, _nothing_before)

    def _made(self, *changes: Callable[[Step], Step]) -> _Steps:
        """Steps for what begins a text and for what does not, changed so."""
        normaliser, cuts = (self._json.get(name) for name in ("normalizer", "pre_tokenizer"))
        made = _parts(normalizer=normaliser and _changed(normaliser, changes[0])).normalizer
        whole, cut = list[Tokenizer](), list[Tokenizer]()
        for change in changes:
            for backends in (whole, cut):
                backend = Tokenizer(self._whole.model)
                if cuts:
                    changed = _parts(pre_tokenizer=_changed(cuts, change))
                    backend.pre_tokenizer = changed.pre_tokenizer
                backends.append(backend)
            if made is not None:
                whole[-1].normalizer = made
        return _Steps(str if made is None else made.normalize_str, whole, cut)

    @cached_property
    def _without_control(self) -> Any:  # noqa: ANN401 - the library's models have no common type
        """The model without control tokens, which other tokens keep their ids in."""
        model = cast("dict[str, Any]", json.loads(self._text)["model"])
        vocabulary: Any = model["vocab"]
        if isinstance(vocabulary, list):
            # A text that nobody can know, so that nobody can write it.
            secret = secrets.token_hex(16)
            model["vocab"] = [
                [f"{secret}{i}", entry[1]] if i in self._control else entry
                for i, entry in enumerate(cast("list[list[Any]]", vocabulary))
            ]
        else:
            kept = {
                text: i
                for text, i in cast("dict[str, int]", vocabulary).items()
                if i not in self._control
            }
            model["vocab"] = kept
            if "merges" in model:
                prefix = model.get("continuing_subword_prefix") or ""
                model["merges"] = [p for p in _pairs(model) if _is_whole(p, kept, prefix)]
        return _parts(model=model).model


class _Matcher:
    """Finds added tokens in a text by the library's own rules.

    Parameters
    ----------
    tokens : iterable of (mapping, int)
        Tokens as a tokenizer.json has them, their texts as they are matched, and their ids.
    """

    def __init__(self, tokens: Iterable[tuple[Step, str, int]]) -> None:
        given = [(flags, text, number) for flags, text, number in tokens if text]
        unknown = "?" * (1 + max((len(text) for _, text, _ in given), default=0))
        self._backend = Tokenizer(models.WordLevel({unknown: 0}, unk_token=unknown))
        self._ids: dict[int, int] = {}
        for flags, text, number in given:
            chosen = {flag: bool(flags.get(flag)) for flag in _FLAGS}
            self._add(AddedToken(text, normalized=False, **chosen))
            self._ids.setdefault(cast("int", self._backend.token_to_id(text)), number)

    def _add(self, token: AddedToken) -> None:
        add = cast("Callable[[list[AddedToken]], int]", self._backend.add_tokens)  # pyright: ignore[reportUnknownMemberType]
        add([token])

    def split(self, text: str) -> Iterator[tuple[int, str | int]]:
        """Stretches without any of the tokens, the tokens between them, and where each begins."""
        if not self._ids:
            if text:
                yield 0, text
            return
        made = self._backend.encode(text, add_special_tokens=False)
        for number, (start, end) in zip(made.ids, made.offsets, strict=True):
            yield start, self._ids.get(number, text[start:end])


class _Added:
    """Added tokens: those that are found in a text as it is, and those found once it is normalised.

    Parameters
    ----------
    tokens : sequence of (mapping, str, int)
        Texts are those of normalised ones after normalising.
    """

    def __init__(self, tokens: Sequence[tuple[Step, str, int]]) -> None:
        self.raw = _Matcher(t for t in tokens if not t[0]["normalized"])
        self.normalised = _Matcher(t for t in tokens if t[0]["normalized"])


@dataclass(frozen=True, slots=True)
class _Steps:
    """What is done to stretches.

    Parameters
    ----------
    normalise : callable
    whole : list of Tokenizer
        Normalises, cuts and encodes: a stretch that begins the text, and one that does not.
    cut : list of Tokenizer
        As `whole`, for what is normalised.
    """

    normalise: Callable[[str], str]
    whole: list[Tokenizer]
    cut: list[Tokenizer]


def walked(step: object) -> Iterator[Step]:
    """Steps of a section: itself, and those in it where it is a sequence."""
    if isinstance(step, dict):
        fields = cast("dict[str, Any]", step)
        yield fields
        for name in _LISTS:
            for inner in cast("list[object]", fields.get(name) or []):
                yield from walked(inner)


def built(tokenizer: Step) -> Tokenizer:
    """Have the library build what a tokenizer.json says.

    Raises
    ------
    TokenizerError
        It cannot; the message names the section.
    """
    try:
        return Tokenizer.from_str(json.dumps(tokenizer))
    except BaseException as error:
        if not is_library_failure(error):
            raise
        for name in _SECTIONS:
            _try_section(tokenizer, name)
        name = "model" if _fails({"model": tokenizer.get("model")}) else "added_tokens"
        raise _unusable(name, error) from None


def _try_section(tokenizer: Step, name: str) -> None:
    if error := _fails({"model": _TINY, name: tokenizer.get(name)}):
        raise _unusable(name, error)


def _fails(sections: Step) -> BaseException | None:
    try:
        _parts(**sections)
    except BaseException as error:
        if not is_library_failure(error):
            raise
        return error
    return None


def _unusable(name: str, error: BaseException) -> TokenizerError:
    return TokenizerError(f"key {name!r} cannot be used, the tokenizers library says: {error}")


def _spelling(decoder: object) -> Callable[[str], str]:
    """How a token's text is spelled so that texts joined make the decoder's, ``▁`` for a space.

    Raises
    ------
    TokenizerError
        The decoder does more than change each token's text.
    """
    changes = [_respelling(step) for step in walked(decoder) if not _is_list(step)]
    if not changes:
        return lambda text: "▁" + text

    def spelled(text: str) -> str:
        for change in changes:
            text = change(text)
        return text

    return spelled


def _respelling(step: Step) -> Callable[[str], str]:
    kind = step.get("type")
    if kind == "Metaspace":
        return lambda text: text.replace(str(step["replacement"]), "▁")
    if kind == "WordPiece":
        prefix = str(step["prefix"])
        return lambda text: text[len(prefix) :] if text.startswith(prefix) else "▁" + text
    if kind == "BPEDecoder":
        suffix = str(step["suffix"])
        return lambda text: text.replace(suffix, "▁")
    pattern = cast("Mapping[str, str]", step.get("pattern") or {}).get("String")
    if kind == "Replace" and pattern:
        content = str(step["content"]).replace(" ", "▁")
        return lambda text: text.replace(pattern, content)
    if kind in ("Fuse", "ByteFallback", "Strip", "ByteLevel"):
        return lambda text: text
    raise TokenizerError(
        f"{KEY}: key 'decoder' has a step of type {kind!r} that no stream of tokens can be "
        "decoded by, needs Metaspace, WordPiece, BPEDecoder, ByteLevel, ByteFallback, Fuse, Strip "
        "or Replace of a string"
    )


def _is_list(step: Step) -> bool:
    return step.get("type") == "Sequence"


def _parts(**sections: object) -> Tokenizer:
    """A tokenizer of these sections, and of a tiny model where there is none among them."""
    return Tokenizer.from_str(json.dumps({"version": "1.0", "model": _TINY} | sections))


def _changed(step: Step, change: Callable[[Step], Step]) -> Step:
    """A step, or the steps in it, changed."""
    name = next((name for name in _LISTS if name in step), None)
    if name is None:
        return change(step)
    inner = [_changed(each, change) for each in cast("list[Step]", step[name])]
    return {**step, name: [each for each in inner if each]}


def _faster(step: Step) -> Step:
    """A step that takes no time quadratic in a text, where that is known."""
    expression = cast("Mapping[str, str]", step.get("pattern") or {}).get("Regex", "")
    if step.get("type") != "Split" or expression not in FASTER:
        return step
    return {**step, "pattern": {"Regex": FASTER[expression]}}


def _same(step: Step) -> Step:
    return step


def _not_first(step: Step) -> Step:
    """A step for text that does not begin the whole."""
    if step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first":
        return {**step, "prepend_scheme": "never"}
    return step


def _nothing_before(step: Step) -> Step:
    """A step that puts nothing before a text; none where it does nothing else."""
    kind = step.get("type")
    if kind == "Metaspace":
        kept = {key: value for key, value in step.items() if key != "add_prefix_space"}
        return {**kept, "prepend_scheme": "never"}
    if kind == "ByteLevel" and "add_prefix_space" in step:
        return {**step, "add_prefix_space": False}
    return {"type": "Sequence", "normalizers": []} if kind == "Prepend" else step


def _unknown(model: Step) -> int | None:
    """Id that a model gives what it does not know."""
    if "unk_id" in model:
        return model["unk_id"]
    vocabulary = cast("Mapping[str, int]", model["vocab"])
    return vocabulary.get(model.get("unk_token") or "")


def _pairs(model: Step) -> list[tuple[str, str]]:
    """Merges of a model, each a text with a space or two texts."""
    return [
        cast("tuple[str, str]", tuple(pair.split(" ") if isinstance(pair, str) else pair))
        for pair in cast("list[Any]", model["merges"])
    ]


def _is_whole(pair: tuple[str, str], vocabulary: Mapping[str, int], prefix: str) -> bool:
    """Whether a vocabulary has both texts of a merge and what it makes."""
    left, right = pair
    return {left, right, left + right.removeprefix(prefix)} <= vocabulary.keys()


def _filled(places: list[int], first: list[int], second: list[int]) -> list[int]:
    made: list[int] = []
    for place in places:
        made += {_STAND_IN: first, _STAND_IN + 1: second}.get(place, [place])
    return made
