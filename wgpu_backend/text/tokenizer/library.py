"""Tokenizers that a tokenizer.json describes, run by Hugging Face's library.

The library follows the file. Two things differ here: a user's text never becomes a control token,
and text that continues other text has nothing put before it. For these, the library's steps are
called one by one: find added tokens, normalise the stretches between them, find added tokens that
are matched in normalised text, and encode the rest.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from tokenizers import AddedToken, NormalizedString, PreTokenizedString, Tokenizer, models

from wgpu_backend.errors import TokenizerError
from wgpu_backend.text.tokenizer.encoders import is_library_failure
from wgpu_backend.text.tokenizer.pretokenizers import FASTER
from wgpu_backend.text.tokenizer.shield import MARK, Shield
from wgpu_backend.text.tokenizer.vocabulary import TokenType

KEY = "tokenizer.huggingface.json"
"""Key of the text of a tokenizer.json in a GGUF file."""
LIBRARY = "huggingface"
"""Value of ``tokenizer.ggml.model`` for an algorithm that GGUF has no name for."""

# An id that no token has.
_STAND_IN = 1 << 31
_FLAGS = ("single_word", "lstrip", "rstrip")
_LISTS = ("normalizers", "pretokenizers", "decoders", "processors")
_SECTIONS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_TINY = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}

Step = Mapping[str, Any]


class LibraryTokenizer:
    """A tokenizer from a tokenizer.json.

    Parameters
    ----------
    text : str
        Content of the file.
    control : frozenset of int
        Ids that no text of a user may become.
    tokens : int
        Number of tokens, which the file's ids must not exceed.

    Raises
    ------
    TokenizerError
        The library cannot use it, or it has an id that no token has.
    """

    def __init__(self, text: str, control: frozenset[int], tokens: int) -> None:
        try:
            given = cast("dict[str, Any]", json.loads(text))
            if cuts := given.get("pre_tokenizer"):
                given["pre_tokenizer"] = _change_steps(cuts, _faster)
            self._whole = build_tokenizer(given)
        except (ValueError, TypeError, RecursionError, TokenizerError) as error:
            raise TokenizerError(f"{KEY}: {error}") from None
        highest = max(self._whole.get_vocab().values(), default=0)
        if highest >= tokens:
            raise TokenizerError(f"{KEY}: highest id is {highest}, needs ids below {tokens}")
        self._text = text
        self._control = control - {_unknown(given["model"])}
        # Without the model, whose vocabulary would be in memory a second time.
        self._json = given | {"model": None}
        self._added: list[tuple[Step, str, int]] = [
            (
                token,
                self._matched_text(token),
                cast("int", self._whole.token_to_id(token["content"])),
            )
            for token in cast("list[dict[str, Any]]", self._json.get("added_tokens") or [])
        ]
        self.byte_level = any(
            step.get("type") == "ByteLevel"
            for name in ("decoder", "pre_tokenizer", "normalizer")
            for step in walk_steps(self._json.get(name))
        )
        self._spelled = _spelling(self._json.get("decoder"))

    def encode(self, text: str, *, parse: bool, shield: Shield | None = None) -> list[int]:
        """Return the ids of a text, without those that the file adds around it.

        Parameters
        ----------
        text : str
            Text without lone surrogates.
        parse : bool
            Whether control tokens in the text become those tokens.
        shield : Shield, optional
            The shield that marked the text.
        """
        if shield is None:
            ids = self._whole.encode(text, add_special_tokens=False).ids
            if parse or self._control.isdisjoint(ids):
                return ids
        return self._stepwise(text, self._parsing if parse else self._plain, self._steps, shield)

    def encode_further(self, text: str) -> list[int]:
        """Return the ids of text that continues other text."""
        return self._stepwise(text, self._plain, self._going_on, None)

    def wrap(self, ids: list[int]) -> list[int]:
        """Add the ids that the file puts around a text."""
        return _fill(self._around_one[0], ids, [])

    def pair(self, first: list[int], second: list[int]) -> tuple[list[int], list[int]]:
        """Join the ids of two texts as the file does; return them and the type of each."""
        places, types = self._around_two
        lengths = {_STAND_IN: len(first), _STAND_IN + 1: len(second)}
        spread = [
            kind
            for place, kind in zip(places, types, strict=True)
            for _ in range(lengths.get(place, 1))
        ]
        return _fill(places, first, second), spread

    def _matched_text(self, token: Step) -> str:
        """Return the text by which an added token is found."""
        normaliser = self._whole.normalizer if token["normalized"] else None
        return (
            token["content"] if normaliser is None else normaliser.normalize_str(token["content"])
        )

    def spell_all(self, texts: Sequence[str], types: Sequence[int]) -> list[str]:
        """Return the texts of tokens as a decoder joins them, ``▁`` for a space."""
        return [
            self._spelled(text) if kind == TokenType.NORMAL else text
            for text, kind in zip(texts, types, strict=True)
        ]

    @property
    def begins_with_space(self) -> bool:
        """Return whether the first token's text has a space that its author did not write."""
        return self._spelled("a") != "a"

    def becomes_control(self, text: str) -> bool:
        """Return whether a text spells control tokens after normalising."""
        if not (self._normal_control or self._control_pieces):
            return False
        stretches = [each for _, each in self._parsing.raw.split(text) if isinstance(each, str)]
        return any(map(self._is_control_within, stretches))

    def _is_control_within(self, stretch: str) -> bool:
        if any(
            isinstance(piece, int) and piece in self._control
            for _, piece in self._parsing.normalised.split(self._steps.normalise(stretch))
        ):
            return True
        if not self._control_pieces:
            return False
        try:
            return not self._control.isdisjoint(self._steps.whole[0].encode(stretch).ids)
        except BaseException as error:
            if not is_library_failure(error):
                raise
            # `encode` fails in the same way, with a message.
            return False

    def may_be_marked(self, text: str) -> bool:
        """Return whether each character of a text may have a mark, see `Shield.mark_all`."""
        return MARK in text and (self._normal_control or self._control_pieces)

    @cached_property
    def _control_pieces(self) -> bool:
        """Return whether the model's own vocabulary has control tokens, as T5's has ``</s>``."""
        pieces = self._whole.get_vocab(with_added_tokens=False).values()
        return not self._control.isdisjoint(pieces)

    @cached_property
    def _has_letters(self) -> bool:
        """Return whether a control token is one normalised character, which no mark can split."""
        return any(
            token["normalized"] and i in self._control and len(text) < 2
            for token, text, i in self._added
        )

    @cached_property
    def _normal_control(self) -> bool:
        """Return whether control tokens are found in normalised text, which is rare."""
        return any(token["normalized"] and i in self._control for token, _, i in self._added)

    @cached_property
    def _around_one(self) -> tuple[list[int], list[int]]:
        return self._ids_around()

    @cached_property
    def _around_two(self) -> tuple[list[int], list[int]]:
        return self._ids_around("B")

    def _ids_around(self, second: str | None = None) -> tuple[list[int], list[int]]:
        """Return the ids and types of a text of one token, or of two."""
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
            pieces = list(self._normalise_stretch(stretch, added, steps, shield))
            if not any(isinstance(piece, int) for _, piece in pieces):
                bare = shield.unmark(stretch) if shield else stretch
                ids += self._encode_typed(bare, steps.whole[start > 0])
                continue
            for place, piece in pieces:
                if isinstance(piece, int):
                    ids.append(piece)
                elif start or not piece or steps.normaliser is None:
                    ids += self._encode_typed(piece, steps.cut[start + place > 0])
                else:
                    bare = shield.unmark(stretch) if shield else stretch
                    ids += self._encode_by_place(bare, place, piece, steps)
        return ids

    def _encode_by_place(self, text: str, place: int, piece: str, steps: _Steps) -> list[int]:
        """Return the ids of a piece of a text that the library prepends something to.

        The library puts it before all that the text's first character became, which may be nothing
        or several pieces.
        """

        def cut(_: int, whole: NormalizedString) -> list[NormalizedString]:
            return [cast("NormalizedString", whole[place : place + len(piece)])]

        made = PreTokenizedString(text)
        made.normalize(steps.normaliser.normalize)
        made.split(cut)
        steps.cut[0].pre_tokenizer.pre_tokenize(made)
        parts = [part for part, *_ in made.get_splits()]
        return [i for part in parts for i in self._encode_typed(part, self._bare)]

    @cached_property
    def _bare(self) -> Tokenizer:
        """The model without steps before it."""
        return Tokenizer(self._whole.model)

    def _normalise_stretch(
        self, text: str, added: _Added, steps: _Steps, shield: Shield | None
    ) -> Iterator[tuple[int, str | int]]:
        """Yield stretches and added tokens after normalising, without marks."""
        if shield is None:
            yield from added.normalised.split(steps.normalise(text))
            return
        bare = steps.normalise(shield.unmark(text))
        marked = steps.normalise(text)
        marks = len(text) - len(shield.unmark(text))
        kept = len(marked) - len(bare) == marks and shield.unmark(marked) == bare
        # Without a place for marks, or with a normaliser that drops them, parse no control tokens.
        if not kept or self._has_letters:
            yield from self._plain.normalised.split(bare)
            return
        for place, piece in added.normalised.split(marked):
            before = len(shield.unmark(marked[:place]))
            yield before, piece if isinstance(piece, int) else shield.unmark(piece)

    def _encode_typed(self, text: str, backend: Tokenizer) -> list[int]:
        """Return the ids of a stretch that a user typed, without control tokens."""
        # Nearly all texts have no control tokens, and the second encoding is for those that do.
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
        return self._make_steps(_same, _not_first)

    @cached_property
    def _going_on(self) -> _Steps:
        return self._make_steps(_nothing_before, _nothing_before)

    def _make_steps(self, *changes: Callable[[Step], Step]) -> _Steps:
        """Build steps for the start of a text and for the rest, with these changes."""
        normaliser, cuts = (self._json.get(name) for name in ("normalizer", "pre_tokenizer"))
        made = _parts(normalizer=normaliser and _change_steps(normaliser, changes[0])).normalizer
        whole, cut = list[Tokenizer](), list[Tokenizer]()
        for change in changes:
            for backends in (whole, cut):
                backend = Tokenizer(self._whole.model)
                if cuts:
                    changed = _parts(pre_tokenizer=_change_steps(cuts, change))
                    backend.pre_tokenizer = changed.pre_tokenizer
                backends.append(backend)
            if made is not None:
                whole[-1].normalizer = made
        keeps = any(changes[0](step) == step and _is_first(step) for step in walk_steps(cuts))
        normalise = str if made is None else made.normalize_str
        return _Steps(normalise, whole, cut, made if keeps else None)

    @cached_property
    def _without_control(self) -> Any:  # noqa: ANN401 - the library's models have no common type
        """Build the model without control tokens; other tokens keep their ids."""
        model = cast("dict[str, Any]", json.loads(self._text)["model"])
        vocabulary: Any = model["vocab"]
        if isinstance(vocabulary, list):
            # A random text, so that no user can write it.
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
                model["merges"] = [p for p in _list_merges(model) if _is_whole(p, kept, prefix)]
        return _parts(model=model).model


class _Matcher:
    """A finder of added tokens in a text by the library's own rules.

    Parameters
    ----------
    tokens : iterable of (mapping, str, int)
        Tokens as in a tokenizer.json, their texts as they are matched, and their ids.
    """

    def __init__(self, tokens: Iterable[tuple[Step, str, int]]) -> None:
        given = [(flags, text, number) for flags, text, number in tokens if text]
        # Longer than every token, so that it equals none.
        unknown = "?" * (1 + max((len(text) for _, text, _ in given), default=0))
        # A word-level model leaves a stretch between added tokens whole, as an unknown word.
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
        """Yield stretches without any of the tokens, the tokens between them, and their places."""
        if not self._ids:
            if text:
                yield 0, text
            return
        made = self._backend.encode(text, add_special_tokens=False)
        for number, (start, end) in zip(made.ids, made.offsets, strict=True):
            yield start, self._ids.get(number, text[start:end])


class _Added:
    """Added tokens, separated into those matched in raw text and those matched in normalised text.

    Parameters
    ----------
    tokens : sequence of (mapping, str, int)
        The texts of normalised tokens are normalised as well.
    """

    def __init__(self, tokens: Sequence[tuple[Step, str, int]]) -> None:
        self.raw = _Matcher(t for t in tokens if not t[0]["normalized"])
        self.normalised = _Matcher(t for t in tokens if t[0]["normalized"])


@dataclass(frozen=True, slots=True)
class _Steps:
    """The processing of stretches.

    Parameters
    ----------
    normalise : callable
        Normalises a text.
    whole : list of Tokenizer
        Tokenizers that normalise, split and encode: for the start of a text, and for the rest.
    cut : list of Tokenizer
        Tokenizers as in `whole`, for normalised text.
    normaliser : Normalizer or None
        The normaliser, if `cut` puts something before the start of a text.
    """

    normalise: Callable[[str], str]
    whole: list[Tokenizer]
    cut: list[Tokenizer]
    normaliser: Any


def walk_steps(step: object) -> Iterator[Step]:
    """Yield the steps of a section, including those inside a sequence."""
    if isinstance(step, dict):
        fields = cast("dict[str, Any]", step)
        yield fields
        for name in _LISTS:
            for inner in cast("list[object]", fields.get(name) or []):
                yield from walk_steps(inner)


def build_tokenizer(tokenizer: Step) -> Tokenizer:
    """Build the tokenizer of a tokenizer.json with the library.

    Raises
    ------
    TokenizerError
        The library cannot use it; the message names the section.
    """
    try:
        return Tokenizer.from_str(json.dumps(tokenizer))
    except BaseException as error:
        if not is_library_failure(error):
            raise
        # The library does not say which section it refuses, so each is tried with a tiny model.
        for name in _SECTIONS:
            _try_section(tokenizer, name)
        name = "model" if _try_sections({"model": tokenizer.get("model")}) else "added_tokens"
        raise _make_error(name, error) from None


def _try_section(tokenizer: Step, name: str) -> None:
    if error := _try_sections({"model": _TINY, name: tokenizer.get(name)}):
        raise _make_error(name, error)


def _try_sections(sections: Step) -> BaseException | None:
    try:
        _parts(**sections)
    except BaseException as error:
        if not is_library_failure(error):
            raise
        return error
    return None


def _make_error(name: str, error: BaseException) -> TokenizerError:
    return TokenizerError(f"key {name!r} cannot be used, the tokenizers library says: {error}")


def _spelling(decoder: object) -> Callable[[str], str]:
    """Return a function that spells a token's text so that joined texts equal the decoder's.

    It writes ``▁`` for a space.

    Raises
    ------
    TokenizerError
        The decoder does more than change each token's text.
    """
    changes = [_respelling(step) for step in walk_steps(decoder) if not _is_list(step)]
    if not changes:
        return lambda text: "▁" + text

    def spell(text: str) -> str:
        for change in changes:
            text = change(text)
        return text

    return spell


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
    """Build a tokenizer of these sections, with a tiny model if there is none among them."""
    return Tokenizer.from_str(json.dumps({"version": "1.0", "model": _TINY} | sections))


def _change_steps(step: Step, change: Callable[[Step], Step]) -> Step:
    """Apply a change to a step, or to the steps in it."""
    name = next((name for name in _LISTS if name in step), None)
    if name is None:
        return change(step)
    inner = [_change_steps(each, change) for each in cast("list[Step]", step[name])]
    return {**step, name: [each for each in inner if each]}


def _faster(step: Step) -> Step:
    """Replace an expression that takes quadratic time, if it is known."""
    expression = cast("Mapping[str, str]", step.get("pattern") or {}).get("Regex", "")
    if step.get("type") != "Split" or expression not in FASTER:
        return step
    return {**step, "pattern": {"Regex": FASTER[expression]}}


def _same(step: Step) -> Step:
    return step


def _is_first(step: Step) -> bool:
    return step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first"


def _not_first(step: Step) -> Step:
    """Change a step for text that is not the start of the whole."""
    if _is_first(step):
        return {**step, "prepend_scheme": "never"}
    return step


def _nothing_before(step: Step) -> Step:
    """Change a step so that it puts nothing before a text."""
    kind = step.get("type")
    if kind == "Metaspace":
        kept = {key: value for key, value in step.items() if key != "add_prefix_space"}
        return {**kept, "prepend_scheme": "never"}
    if kind == "ByteLevel" and "add_prefix_space" in step:
        return {**step, "add_prefix_space": False}
    return {"type": "Sequence", "normalizers": []} if kind == "Prepend" else step


def _unknown(model: Step) -> int | None:
    """Return the id of a model's unknown token."""
    if "unk_id" in model:
        return model["unk_id"]
    vocabulary = cast("Mapping[str, int]", model["vocab"])
    return vocabulary.get(model.get("unk_token") or "")


def _list_merges(model: Step) -> list[tuple[str, str]]:
    """List the merges of a model, each of which is a text with a space or two texts."""
    return [
        cast("tuple[str, str]", tuple(pair.split(" ") if isinstance(pair, str) else pair))
        for pair in cast("list[Any]", model["merges"])
    ]


def _is_whole(pair: tuple[str, str], vocabulary: Mapping[str, int], prefix: str) -> bool:
    """Return whether a vocabulary has both texts of a merge and its result."""
    left, right = pair
    return {left, right, left + right.removeprefix(prefix)} <= vocabulary.keys()


def _fill(places: list[int], first: list[int], second: list[int]) -> list[int]:
    made: list[int] = []
    for place in places:
        made += {_STAND_IN: first, _STAND_IN + 1: second}.get(place, [place])
    return made
