"""Pictures and sounds in a prompt, and the model inputs that replace their tokens.

A tower encodes a picture or a sound as rows, one for each token that it takes in the prompt. In the
prompt each row has a stand-in: a number outside every vocabulary, made from a digest of the input.
So the prefix cache compares and counts such prompts like text. Only a pass replaces a stand-in, by
a valid token id whose embedding the row then replaces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from secrets import token_hex
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.engine.prompt import Prompter
from wgpu_backend.errors import ModelError, OptionError
from wgpu_backend.nn.batch import Span, Work
from wgpu_backend.nn.model_inputs import STATES
from wgpu_backend.nn.rope import POSITIONS
from wgpu_backend.nn.tower import NUMBER_MARK, Media, Rows, Tower
from wgpu_backend.nn.transformer import EMBEDDINGS
from wgpu_backend.text.tokenizer import Tokenizer

Message = Mapping[str, object]
PART_KINDS = ("text", "image", "audio", "video")
"""Types of the parts of a message."""
FPS = 2.0
"""Frames in a second of a video that does not say it: the rate at which Qwen's models sample."""
MARKER = "<__media__>"
"""The text that stands for a picture or a sound in raw prompts of any model, as in llama.cpp."""
STAND_IN = 1 << 62
"""Stand-ins are at least this number, and fit 63 bits."""
_DIGEST_NBYTES = 7
# The token id in a row's place. Its embedding is replaced, so any id of the vocabulary will do.
PLACE_ID = 0

F32s = NDArray[np.float32]


class RowKinds(NamedTuple):
    """The inputs and the attention that a pass needs for rows of a model's towers.

    Parameters
    ----------
    inputs : tuple of str
        Model inputs with their values, in order.
    spans : bool
        Whether rows may attend to later rows.
    """

    inputs: tuple[str, ...]
    spans: bool


NO_ROWS = RowKinds((), spans=False)


@dataclass(frozen=True, slots=True)
class TowerRules:
    """The attributes of a `Tower` that decide how a prompt is made, without its weights."""

    placeholder: str
    around: tuple[str, str]
    is_causal: bool


Prepared = tuple[Media, Tower | TowerRules]


def get_markers(prepared: Prepared) -> tuple[str, ...]:
    """Return the texts that a chat template may write for a picture, a sound or a video."""
    media, tower = prepared
    return media.markers or (tower.placeholder,)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of consecutive rows in a prompt.

    Parameters
    ----------
    start : int
        Position of its first row in the prompt.
    first : int
        Number of that row in the tower's result.
    rows : Rows
        Number of rows, and their grid.
    token : int
        Token id in a row's place; that of a picture whose rows the model attends to.
    """

    start: int
    first: int
    rows: Rows
    token: int = PLACE_ID

    @property
    def end(self) -> int:
        """Return the position after the last row."""
        return self.start + self.rows.count


@dataclass(frozen=True, slots=True)
class Placed:
    """A picture or a sound with its place in a prompt.

    Parameters
    ----------
    media : Media
        The tower's inputs.
    tower : Tower or TowerRules
        The tower that it was prepared for; in another process, its attributes alone.
    runs : sequence of Run
        The places of its rows in the prompt, in order.
    """

    media: Media
    tower: Tower | TowerRules
    runs: Sequence[Run]

    @property
    def end(self) -> int:
        """Return the position after the last row."""
        return self.runs[-1].end


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens of a prompt, with a stand-in for each row, and its pictures and sounds."""

    tokens: list[int]
    placed: tuple[Placed, ...] = ()

    def extend(self, before: Sequence[int], after: Sequence[int]) -> Prompt:
        """Return the prompt with tokens before and after it."""
        moved = tuple(
            replace(each, runs=[replace(run, start=run.start + len(before)) for run in each.runs])
            for each in self.placed
        )
        return Prompt([*before, *self.tokens, *after], moved)


def drop_stand_ins(tokens: Sequence[int]) -> list[int]:
    """Return the tokens of a prompt that are in the vocabulary."""
    return [token for token in tokens if token < STAND_IN]


def make_stand_ins(media: Media) -> list[int]:
    """Return a stand-in for each row of a prepared picture or sound."""
    base = int.from_bytes(media.digest[:_DIGEST_NBYTES], "little")
    # Rows of a picture differ by their number, and equal numbers of two pictures by the digest.
    return [
        STAND_IN | (base ^ row * 0x9E3779B97F4A7C15) & STAND_IN - 1 for row in range(media.tokens)
    ]


def place(
    text: str,
    prepared: Sequence[Prepared],
    tokenizer: Tokenizer,
    markers: Sequence[str] = (MARKER,),
    begin: Callable[[list[int]], list[int]] = list,
) -> Prompt:
    """Tokenize a text, with the stand-ins of pictures and sounds in place of its markers, in order.

    Parameters
    ----------
    text : str
        Spellings of control tokens in it become those tokens.
    markers : sequence of str
        Texts that stand for a picture or a sound.
    begin : callable
        Maps the first tokens of the text to those of the prompt, for example by adding BOS.

    Raises
    ------
    OptionError
        There are not as many markers as pictures and sounds.
    """
    places = "|".join(map(re.escape, sorted(markers, key=len, reverse=True)))
    pieces = re.split(f"({places})", text)
    if len(pieces) // 2 != len(prepared):
        raise OptionError(
            f"prompt: it has {len(pieces) // 2} markers of pictures or sounds "
            f"({' or '.join(markers)}), {len(prepared)} were given; needs one for each"
        )
    tokens: list[int] = []
    placed: list[Placed] = []

    begins = True

    def encode(part: str) -> None:
        nonlocal begins
        ids = tokenizer.encode(part, add_special=False, parse_special=True)
        tokens.extend(begin(ids) if begins else ids)
        begins = False

    # The text between rows is tokenized in one piece, with the control tokens around the rows.
    waiting = pieces[0]
    found = zip(prepared, pieces[1::2], pieces[2::2], strict=True)
    for number, ((media, tower), marker, after) in enumerate(found):
        runs: list[Run] = []
        stand_ins = make_stand_ins(media)
        is_whole = bool(media.markers) or marker == tower.placeholder
        before, after_it = ("", "") if is_whole else tower.around
        waiting += before
        first = 0
        for part in media.layout:
            if isinstance(part, str):
                waiting += part.replace(NUMBER_MARK, str(number))
                continue
            # BOS follows pictures at the start, if the model attends to their rows.
            if waiting or not part.states:
                encode(waiting)
            waiting = ""
            token = _find_token(tokenizer, tower.placeholder) if part.states else PLACE_ID
            runs.append(Run(len(tokens), first, part, token))
            tokens += stand_ins[: part.count]
            del stand_ins[: part.count]
            first += part.outputs
        placed.append(Placed(media, tower, tuple(runs)))
        waiting += after_it + after
    encode(waiting)
    return Prompt(tokens, tuple(placed))


def _find_token(tokenizer: Tokenizer, text: str) -> int:
    """Return the id of the token that stands for a picture.

    Raises
    ------
    ModelError
        The vocabulary has no such token.
    """
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    if len(ids) != 1:
        raise ModelError(f"the vocabulary has no token {text!r}, which stands for a picture")
    return ids[0]


@dataclass(slots=True, weakref_slot=True)
class Inserted:
    """The model inputs that replace a prompt's stand-ins.

    Parameters
    ----------
    placed : sequence of Placed
        Pictures and sounds in the order of the prompt.
    cols : int
        Columns of a row.
    turns : bool
        Whether the model's RoPE has positions in time, height and width.

    Attributes
    ----------
    rows : dict of int to ndarray
        Encoded rows, by their index in `placed`: (rows, cols), f32.
    """

    placed: Sequence[Placed]
    cols: int
    turns: bool
    rows: dict[int, F32s] = field(default_factory=dict[int, F32s])

    def next(self, sent: int) -> int | None:
        """Return the first index in `placed` whose rows are needed after `sent` but not encoded."""
        wanted = (i for i, each in enumerate(self.placed) if each.end > sent)
        return next((i for i in wanted if i not in self.rows), None)

    def reach(self, sent: int, count: int) -> int:
        """Return how many of `count` tokens after `sent` precede the first row to encode."""
        index = self.next(sent)
        if index is None:
            return count
        return max(0, min(count, self.placed[index].runs[0].start - sent))

    def whole(self, sent: int, count: int) -> int:
        """Return `count`, changed so that the pass cuts no run with bidirectional attention.

        The pass ends before such a run. If it begins with the run, it takes all of it. It also ends
        before a picture that later tokens attend to.
        """
        for run in self._list_attended():
            if sent < run.start < sent + count:
                count = run.start - sent
        for run in self._linked():
            if run.start < sent + count < run.end:
                return run.start - sent if run.start > sent else run.end - sent
        return count

    @property
    def longest(self) -> int:
        """Return the most rows that attend to each other, and so need one pass; 0 for none."""
        return max((run.rows.count for run in self._linked()), default=0)

    def _list_attended(self) -> list[Run]:
        """Return the runs whose rows the model attends to."""
        return [run for each in self.placed for run in each.runs if run.rows.states]

    def _linked(self) -> list[Run]:
        """Return the runs whose rows attend to each other."""
        return [run for each in self.placed if not each.tower.is_causal for run in each.runs]

    def work(self, work: Work, start: int) -> Work:
        """Return a pass over tokens from position `start` on, with rows in place of stand-ins.

        After a picture, positions also differ from places in the prompt for generated tokens.
        """
        end = start + len(work.tokens)
        inputs: dict[str, NDArray[Any]] = dict(work.inputs)
        embeddings = self._embeddings(start, end)
        if embeddings is not None:
            inputs[EMBEDDINGS] = embeddings
        if self.turns:
            inputs[POSITIONS] = self.positions(start, end)
        tokens = [PLACE_ID if token >= STAND_IN else token for token in work.tokens]
        for index, each in enumerate(self.placed):
            for run in each.runs:
                if run.rows.states and start <= run.start < end:
                    # `whole` ends passes before a picture, so that it is the first token.
                    assert run.start == start
                    tokens[0] = run.token
                    inputs[STATES] = self.rows[index][run.first : run.first + run.rows.states]
        # Rows of a run that are cached already saw the whole run; the others see them anyway.
        spans: list[Span] = [
            (max(run.start, start) - start, run.end - 1 - start)
            for run in self._linked()
            if run.start < end and start < run.end
        ]
        return Work(work.sequence, tokens, work.outputs, inputs, spans)

    def _embeddings(self, start: int, end: int) -> F32s | None:
        """Return the row of each position, NaN for text; None if all positions are text."""
        made: F32s | None = None
        for index, each in enumerate(self.placed):
            for run in each.runs:
                first, last = max(run.start, start), min(run.end, end)
                if first >= last or run.rows.states:
                    continue
                if made is None:
                    made = np.full((end - start, self.cols), np.nan, np.float32)
                at = run.first + first - run.start
                made[first - start : last - start] = self.rows[index][at : at + last - first]
        return made

    def positions(self, start: int, end: int) -> NDArray[np.int32]:
        """Return positions in time, height and width: (end - start, 3).

        Wang et al. 2024, "Qwen2-VL", §2.1: a text's three positions are the same. Those of a
        picture are counted from the position after the text; text continues after the largest.
        """
        made = np.arange(start, end, dtype=np.int32)[:, None].repeat(3, axis=1)
        # The difference between places in the prompt and positions.
        offset = 0
        for run in (run for each in self.placed for run in each.runs):
            grid = run.rows.grid
            if grid is None:
                continue
            first, last = max(run.start, start), min(run.end, end)
            if first < last:
                own = np.indices(grid, np.int32).reshape(3, -1).T
                own[:, 0] = own[:, 0].astype(np.float32) * np.float32(run.rows.step)
                own = own + (run.start + offset)
                made[first - start : last - start] = own[first - run.start : last - run.start]
            time = int(np.float32(grid[0] - 1) * np.float32(run.rows.step)) + 1
            step = max(time, *grid[1:]) - run.rows.count
            offset += step
            made[max(run.end - start, 0) :] += step
        return made


class TowerRows:
    """A cache of the latest towers' results by digest, so that each picture is encoded once."""

    def __init__(self, most_nbytes: int) -> None:
        self._most = most_nbytes
        self._rows: dict[bytes, F32s] = {}
        self._nbytes = 0

    def find(self, digest: bytes) -> F32s | None:
        """Return the rows of a digest; None if they are not kept."""
        found = self._rows.pop(digest, None)
        if found is not None:
            # Put at the end, so that the first entry is the least recently used.
            self._rows[digest] = found
        return found

    def add(self, digest: bytes, rows: F32s) -> None:
        """Keep the rows of a digest; drop the least recently used ones beyond the limit."""
        if self.find(digest) is None:
            self._rows[digest] = rows
            self._nbytes += rows.nbytes
        while self._nbytes > self._most and len(self._rows) > 1:
            oldest = next(iter(self._rows))
            self._nbytes -= self._rows.pop(oldest).nbytes


@dataclass(frozen=True, slots=True)
class Part:
    """A picture, a sound or a video of a message.

    Parameters
    ----------
    kind : str
        ``image``, ``audio`` or ``video``.
    source : object
        A path, bytes or an array; of a video, a list of them, or an animation.
    fps : object
        Frames in a second of a video.
    """

    kind: str
    source: object
    fps: object = FPS


# The marker of a picture's number in a rendered conversation, which no user can guess.
_NONCE = "\ue000media-{}-{}\ue000"
# Found in templates that accept a list of parts as a message's content.
_READS_PARTS = re.compile(r"\.type\b|\[\s*['\"]type['\"]\s*\]|selectattr\(\s*['\"]type['\"]")


class Illustrations:
    """The pictures and sounds of a conversation, numbered in its messages.

    Parameters
    ----------
    messages : sequence of mappings
        Their content may have parts ``{"type": "image", "image": …}``, ``{"type": "audio",
        "audio": …}`` and ``{"type": "video", "video": […], "fps": 2}``. A message may also have
        Ollama's list of ``images``, which precede its text.

    Attributes
    ----------
    messages : list of mappings
        The messages, with the number of each in place of its source.
    parts : list of Part
        The sources, by number.

    Raises
    ------
    OptionError
        A part or a list of images is of another type.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self.parts: list[Part] = []
        self.messages = [self._number(message) for message in messages]
        self._nonce = token_hex(8)

    def _number(self, message: Message) -> Message:
        content, images = message.get("content"), message.get("images")
        listed = cast("list[object]", content) if isinstance(content, list) else None
        if not images and not any(_kind(part) for part in listed or []):
            return message
        if not isinstance(images, list | tuple | None):
            raise OptionError(f"images: {type(images).__name__}, needs a list of pictures")
        made: list[object] = [
            self._take("image", image) for image in cast("Sequence[object]", images or ())
        ]
        alone: list[object] = [{"type": "text", "text": content}]
        for part in alone if listed is None else listed:
            kind = _kind(part)
            if kind is None:
                made.append(part)
                continue
            source = cast("Message", part).get(kind)
            if source is None:
                raise OptionError(f"a part of type {kind!r} has no {kind!r}, needs its data")
            made.append(self._take(kind, source, cast("Message", part).get("fps", FPS)))
        # A message with images only has no part for text.
        if listed is None and not content:
            made.pop()
        rest = {key: value for key, value in message.items() if key != "images"}
        return {**rest, "content": made}

    def _take(self, kind: str, source: object, fps: object = FPS) -> Message:
        self.parts.append(Part(kind, source, fps))
        return {"type": kind, "number": len(self.parts) - 1}

    def count(self, messages: Sequence[Message]) -> int:
        """Return how many pictures and sounds some of `self.messages` have."""
        contents = [message.get("content") for message in messages]
        lists = [cast("list[object]", each) for each in contents if isinstance(each, list)]
        return sum(_kind(part) is not None for each in lists for part in each)

    def spell(
        self, messages: Sequence[Message], template: str, placeholders: Sequence[Sequence[str]]
    ) -> tuple[list[Message], list[str], list[int]]:
        """Return messages that a template can render, and the markers of pictures in its output.

        Parameters
        ----------
        messages : sequence of mappings
            Some of `self.messages`.
        template : str
            The template's source.
        placeholders : sequence of sequences of str
            For each part the texts of which the template should write one.

        Returns
        -------
        messages : list of mappings
        markers : list of str
            Texts that stand for a picture or a sound.
        numbers : list of int
            Number of each part, in order.
        """
        reads = _READS_PARTS.search(template) is not None
        own = reads and all(any(text in template for text in texts) for texts in placeholders)
        numbers: list[int] = []
        markers = [*dict.fromkeys(chain.from_iterable(placeholders))] if own else []
        made: list[Message] = []
        for message in messages:
            content = message.get("content")
            parts = cast("list[Message]", content) if isinstance(content, list) else []
            found = [cast("int", part["number"]) for part in parts if _kind(part)]
            numbers += found
            # Templates write results of tools as texts, and few look for pictures in them.
            is_result = message.get("role") == "tool"
            if not found or (own and not is_result):
                made.append(message)
                continue
            markers += map(self._marker, found)
            spelled = [
                {"type": "text", "text": self._marker(cast("int", part["number"]))}
                if _kind(part)
                else part
                for part in parts
            ]
            whole = "".join(str(part.get("text", "")) for part in spelled)
            made.append({**message, "content": spelled if reads and not is_result else whole})
        return made, markers, numbers

    def _marker(self, number: int) -> str:
        return _NONCE.format(self._nonce, number)


def _kind(part: object) -> str | None:
    """Return the type of a part that is a picture or a sound; None for text."""
    if not isinstance(part, Mapping):
        return None
    kind = cast("Message", part).get("type")
    return kind if kind in PART_KINDS[1:] else None


def place_raw(
    prompter: Prompter, text: str, prepared: Sequence[Prepared], markers: Sequence[str]
) -> Prompt:
    """Tokenize a raw prompt with pictures and sounds in place of its markers.

    They come before the text if it has no marker.
    """
    if not any(marker in text for marker in markers):
        text = MARKER * len(prepared) + text
    return place(text, prepared, prompter.tokenizer, markers, prompter.with_bos)


def place_in_chat(
    prompter: Prompter,
    shown: Illustrations,
    messages: Sequence[Message],
    prepared: Sequence[Prepared],
    **inputs: Any,  # noqa: ANN401
) -> Prompt:
    """Render messages of a conversation with pictures and sounds, and tokenize them.

    Parameters
    ----------
    messages : sequence of mappings
        Some of ``shown.messages``.
    prepared : sequence of Prepared
        All pictures and sounds of `shown`.
    **inputs
        See `Prompter.render`.
    """
    source = "" if prompter.template is None else prompter.template.source
    spelled, markers, numbers = shown.spell(messages, source, [*map(get_markers, prepared)])
    text = prompter.render(spelled, kinds=PART_KINDS, **inputs)
    wanted = [prepared[number] for number in numbers]
    if not wanted:
        tokens = prompter.tokenizer.encode(text, add_special=False, parse_special=True)
        return Prompt(prompter.with_bos(tokens))
    return place(text, wanted, prompter.tokenizer, markers, prompter.with_bos)
