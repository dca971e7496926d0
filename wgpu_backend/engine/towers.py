"""The encoders of pictures and sounds, called towers, of a loaded language model."""

from __future__ import annotations

import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from wgpu_backend.engine.media import (
    MARKER,
    NO_ROWS,
    F32s,
    Inserted,
    Part,
    Placed,
    Prompt,
    RowKinds,
    TowerRows,
    get_markers,
    place_raw,
)
from wgpu_backend.engine.prompt import Prompter
from wgpu_backend.errors import BackendError, DeviceLost, GGUFError, ModelError, OptionError
from wgpu_backend.files.gguf.reader import GGUFFile
from wgpu_backend.files.media.sounds import load_sound
from wgpu_backend.files.tower_files import open_tower
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Array, Cost, Pausable, PausableRun, Submitted
from wgpu_backend.nn.model import Model
from wgpu_backend.nn.model_inputs import STATES, AttendedInput, RowsInput
from wgpu_backend.nn.rope import POSITIONS
from wgpu_backend.nn.tower import Media, Tower, known_kinds, tower_class
from wgpu_backend.nn.transformer import EMBEDDINGS

# Recorded graphs of a tower, one for each shape of its inputs; the least recently used goes first.
MOST_GRAPHS = 8
# Host memory for the encoded rows of the latest pictures.
ROWS_NBYTES = 128 << 20
# Time of a piece while no other request needs the device: a new one waits so long at most.
WHOLE_SECONDS = 0.05
# The pause before looking again whether a graph's kernels are compiled, if nothing else can run.
PAUSE = 1e-3
# Operations a second before a piece was measured: less than any device does.
FIRST_SPEED = 1e9
# Of a piece's time, the least that is attributed to its new dispatches.
NEW_SHARE = 0.1
# Most by which a measured time of a dispatch may differ from the one before.
MOST_CHANGE = 4.0
Item = TypeVar("Item")
Alone = Callable[[Callable[[], Item]], Item]
_NAMES = {"image": "pictures", "audio": "sound"}
# A picture's side in pixels, and a sound's samples at 16 kHz, that a warm-up encodes. Smaller ones
# need other kernels than most pictures do: those of products with few rows.
_SIDE, _SAMPLES = 128, 16_000
_Key = tuple[tuple[str, tuple[int, ...], str], ...]


def _check_fps(fps: object) -> float:
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < 1e6:
        raise OptionError(f"fps: {fps!r}, needs a number above 0: frames in a second of a video")
    return float(fps)


def _run(act: Callable[[], Item]) -> Item:
    return act()


class Speeds:
    """A model of dispatch times, by op and cost, that is fitted to the times of several at once.

    Layers repeat their dispatches, so that most times are known after the first layer.
    """

    def __init__(self) -> None:
        self._seconds: dict[Cost, float] = {}
        # Of all pieces that were measured: the speed of dispatches that are new.
        self._cost, self._spent = FIRST_SPEED * 1e-3, 1e-3

    def predict(self, dispatch: Cost) -> float:
        """Return the seconds of a dispatch."""
        known = self._seconds.get(dispatch)
        return dispatch[1] * self._spent / self._cost if known is None else known

    def count(self, dispatches: Sequence[Cost], first: int, seconds: float) -> int:
        """Return how many dispatches from `first` on fit into `seconds`; at least one.

        Each new one is run once in a piece: several that are slower than predicted would add up.
        """
        stop, left, new = first, seconds, set[Cost]()
        while stop < len(dispatches):
            each = dispatches[stop]
            if (left := left - self.predict(each)) < 0 or each in new:
                break
            if each not in self._seconds:
                new.add(each)
            stop += 1
        return max(stop - first, 1)

    def measure(self, dispatches: Sequence[Cost], seconds: float) -> None:
        """Correct the times of dispatches that together took `seconds`."""
        new = [each for each in dispatches if each not in self._seconds]
        if new:
            # What the others do not take is theirs.
            known = sum(self.predict(each) for each in dispatches if each in self._seconds)
            seconds = max(seconds - known, NEW_SHARE * seconds)
        factor = seconds / sum(map(self.predict, new or dispatches))
        if not new:
            # Something else may have kept the machine busy.
            factor = min(max(factor, 1 / MOST_CHANGE), MOST_CHANGE)
        # Before the speed changes, from which new ones are predicted.
        self._seconds.update({each: factor * self.predict(each) for each in new or dispatches})
        if new:
            self._cost += sum(cost for _, cost in new)
            self._spent += seconds


class Encoding:
    """A picture or a sound that its tower encodes in pieces, between the steps of other requests.

    Parameters
    ----------
    graph : Pausable
        Its graph, which may not be ready.
    inputs : mapping of str to ndarray
        The graph's.
    speeds : Speeds
        Those of the tower.

    Attributes
    ----------
    values : (rows, cols), f32, or None
        The result, once all pieces ran.
    """

    def __init__(self, graph: Pausable, inputs: Mapping[str, Array], speeds: Speeds) -> None:
        self.values: F32s | None = None
        self._graph = graph
        self._inputs = inputs
        self._run: PausableRun | None = None
        self._dispatches: Sequence[Cost] = ()
        self._speeds = speeds
        # Pieces that the device may still compute, each with its dispatches and its begin.
        self._waiting: deque[tuple[Submitted, Sequence[Cost], float]] = deque()
        self._ended = 0.0

    def advance(self, seconds: float, *, together: int = 1) -> None:
        """Run a piece, or get a part of the graph ready.

        Parameters
        ----------
        seconds : float
            Time that it should take.
        together : int
            Pieces in flight at most: with 1 it has run at the end; with 2 the one before it has,
            so that the device has work while the host does other things.
        """
        begin = time.perf_counter()
        if (run := self._run) is None:
            if not self._graph.prepare(seconds):
                if together > 1:
                    # Only its kernels, which other threads compile, are missing.
                    time.sleep(PAUSE)
                return
            self._run = run = self._graph.begin(self._inputs)
            self._dispatches = self._graph.costs
        first = run.done
        submitted = run.advance(self._speeds.count(self._dispatches, first, seconds))
        self._waiting.append((submitted, self._dispatches[first : run.done], begin))
        is_last = run.done == len(self._dispatches)
        while self._waiting and (is_last or len(self._waiting) >= together):
            self._wait()
        if is_last:
            [self.values] = run.result().wait()
            self.close()

    def _wait(self) -> None:
        """Wait for the oldest piece in flight, and measure its time."""
        piece, dispatches, begin = self._waiting.popleft()
        piece.wait()
        # It began when the one before it ended.
        begin, self._ended = max(begin, self._ended), time.perf_counter()
        self._speeds.measure(dispatches, self._ended - begin)

    def finish(self) -> F32s:
        """Run all pieces that are left, one after the other, and return the result."""
        self._graph.prepare(math.inf)
        while self.values is None:
            self.advance(WHOLE_SECONDS, together=2)
        return self.values

    def close(self) -> None:
        """Run no more pieces; calling it again is harmless."""
        if self._run is not None:
            self._run.close()
            self._run = None
            self._waiting.clear()


class Graphs:
    """The recorded graphs of one tower, by the shapes of its inputs."""

    def __init__(self, tower: Tower) -> None:
        self._tower = tower
        self._recorded: dict[_Key, tuple[Context, Pausable]] = {}
        self._speeds = Speeds()

    def run(self, media: Media) -> F32s:
        """Return the rows of a prepared picture or sound: (rows, cols)."""
        return self.check(self.begin(media).finish())

    def begin(self, media: Media) -> Encoding:
        """Begin to encode a prepared picture or sound. It ends an earlier one's encoding."""
        key = tuple((name, a.shape, a.dtype.str) for name, a in sorted(media.arrays.items()))
        found = self._recorded.pop(key, None)
        if found is None:
            while len(self._recorded) >= MOST_GRAPHS:
                self._close(*self._recorded.pop(next(iter(self._recorded))))
            found = self._record(media)
        # The one used last is at the end.
        self._recorded[key] = found
        graph = found[1]
        return Encoding(graph, media.arrays, self._speeds)

    def check(self, rows: F32s) -> F32s:
        """Return a copy of a tower's result.

        Raises
        ------
        ModelError
            A value is not finite.
        """
        if not np.isfinite(rows).all():
            raise self._tower.fail("a tower's result is not finite; the file is damaged")
        return rows.copy()

    def _record(self, media: Media) -> tuple[Context, Pausable]:
        tower = self._tower
        context = Context(tower.backend.executor)
        try:
            inputs = {n: context.input(n, a.shape, a.dtype) for n, a in media.arrays.items()}
            y = tower.encode(context, inputs)
            if y.shape != (media.rows, tower.cols):
                raise tower.fail(
                    f"the tower's result has shape {y.shape}, needs {(media.rows, tower.cols)}"
                )
            return context, context.record_pausable(y, at_once=False)
        except BaseException:
            context.close()
            raise

    @staticmethod
    def _close(context: Context, recorded: Pausable) -> None:
        recorded.close()
        context.close()

    def close(self) -> None:
        """Release all graphs; safe to call again."""
        while self._recorded:
            self._close(*self._recorded.popitem()[1])


@dataclass(slots=True)
class _Now:
    """The encoding under way, and the request that waits for it."""

    digest: bytes
    graphs: Graphs
    encoding: Encoding
    # Weak, so that nothing more is computed for a request that is gone.
    wanted_by: weakref.ref[Inserted] | None = None

    def is_wanted_by(self, inserted: Inserted | None) -> bool:
        """Return whether the request waits for this encoding; for None, whether no request does."""
        return (None if self.wanted_by is None else self.wanted_by()) is inserted


def find_cols(model: Model) -> int | None:
    """Return the length of the vectors that a tower makes for the model; None if it takes none."""
    inputs = model.inputs()
    wanted = inputs.get(EMBEDDINGS) or inputs.get(STATES)
    return wanted.cols if isinstance(wanted, RowsInput | AttendedInput) else None


class Towers:
    """The towers of a language model, from its own file or folder, or from `mmproj`.

    Weights are loaded on the first picture or sound, so that text alone needs no memory for them.

    Parameters
    ----------
    backend : Backend
        The language model's backend, whose device the towers use.
    mmproj : Path or None
        File or folder of the towers; None to look for it.

    Attributes
    ----------
    alone : callable
        Runs a function while no other thread uses the device.
    warm_nbytes : int
        Bytes on the device of the graphs that `warm_up` recorded.
    """

    def __init__(self, backend: Backend, model: Model, mmproj: Path | None) -> None:
        self._text = backend
        self._model = model
        self._mmproj = mmproj
        self.alone: Alone[Any] = _run
        self.warm_nbytes = 0
        self._backend: Backend | None = None
        self._file: GGUFFile | None = None
        self._kinds: dict[str, str] | None = None
        self._towers: dict[str, Tower] = {}
        self._graphs: dict[int, Graphs] = {}
        self._rows = TowerRows(ROWS_NBYTES)
        self._now: _Now | None = None

    @property
    def backend(self) -> Backend | None:
        """The backend of the towers' weights; None before the first picture or sound."""
        return self._backend

    @property
    def mmproj(self) -> Path | None:
        """The file or folder of the towers that was named."""
        return self._mmproj

    @property
    def modalities(self) -> Sequence[str]:
        """Return which of ``image`` and ``audio`` the model takes, without loading weights.

        Raises
        ------
        ModelError
            `mmproj` is damaged, or several files of the folder fit.
        """
        if self._kinds is None:
            takes = self._model.shared_cols or find_cols(self._model)
            self._file = open_tower(self._text.file, self._mmproj) if takes else None
            self._kinds = {} if self._file is None else known_kinds(self._file.config)
        return [*self._kinds]

    def has(self, modality: str) -> bool:
        """Return whether there is one tower for a modality; loads nothing and raises nothing."""
        try:
            return modality in self.modalities
        except (ModelError, OSError):
            return False

    def get(self, modality: str) -> Tower:
        """Return a tower, loaded on first use.

        Raises
        ------
        OptionError
            The model has no tower for that modality.
        ModelError
            The tower is of another model or of an unknown kind, or its file is damaged.
        OutOfMemory
            Its weights do not fit on the device.
        """
        if modality not in self.modalities:
            raise OptionError(self._lacking(modality))
        return self.alone(lambda: self._load(modality))

    def warm_up(self, progress: Callable[[], object] = int) -> None:
        """Load all towers, and run each once on a blank picture or sound.

        Some drivers compile a kernel when it first runs, and requests would wait for that.

        Parameters
        ----------
        progress : callable
            Called before each piece; an error that it raises ends the warm-up.

        Raises
        ------
        OptionError, ModelError, OutOfMemory
            See `get`.
        """
        executor = self._text.executor
        for modality in self.modalities:
            tower = self.get(modality)
            sound = np.zeros(_SAMPLES, np.float32)
            blank = np.zeros((_SIDE, _SIDE, 3), np.uint8) if modality == "image" else sound
            before = executor.graph_nbytes()
            encoding = self._graphs[id(tower)].begin(tower.prepare(blank))
            try:
                while encoding.values is None:
                    progress()
                    encoding.advance(WHOLE_SECONDS, together=2)
            finally:
                encoding.close()
            self.warm_nbytes += executor.graph_nbytes() - before

    def _lacking(self, modality: str) -> str:
        name, what = self._text.file.path, _NAMES[modality]
        architecture = self._text.config.architecture
        if not self._model.shared_cols and not find_cols(self._model):
            return f"{name}: architecture {architecture!r} takes only text, {what} were given"
        return (
            f"{name}: it has no tower for {what}: neither in the file, nor as an mmproj*.gguf of "
            "the same width in its folder; pass a file as mmproj"
        )

    def _load(self, modality: str) -> Tower:
        found = self._towers.get(modality)
        if found is None:
            assert self._file is not None and self._kinds is not None  # noqa: PT018
            kind = tower_class(self._file.config, modality, self._kinds[modality])
            # Kept, so that a retry uploads only the weights that a failed load left out.
            self._backend = self._backend or Backend(self._file, self._text.executor)
            self._backend.load()
            found = kind(self._backend)
            self._require_width(found)
            self._towers[modality] = found
            self._graphs[id(found)] = Graphs(found)
        return found

    def _require_width(self, tower: Tower) -> None:
        """Raise if the rows' width is not the language model's."""
        wanted = find_cols(self._model) or self._model.shared_cols
        if wanted != tower.cols:
            # A server answers such a file of its store like a damaged one.
            raise GGUFError(
                f"{tower.backend.file.path}: its rows have {tower.cols} columns, "
                f"{self._text.file.path} needs {wanted}: the tower belongs to another "
                "model; use this model's mmproj"
            )

    @property
    def row_kinds(self) -> RowKinds:
        """Return the attention and inputs that towers' rows need in a pass; loads no weights."""
        modalities = [name for name in ("image", "audio") if self.has(name)]
        if not modalities or self._file is None or self._kinds is None:
            return NO_ROWS
        config, kinds = self._file.config, self._kinds
        spans = any(not tower_class(config, name, kinds[name]).is_causal for name in modalities)
        known = self._model.inputs()
        return RowKinds(tuple(sorted({EMBEDDINGS, POSITIONS, STATES} & known.keys())), spans)

    @property
    def markers(self) -> list[str]:
        """Return the texts that stand for a picture or a sound in a raw prompt."""
        return [MARKER, *(self.get(modality).placeholder for modality in self.modalities)]

    def prepare(self, part: Part) -> tuple[Media, Tower]:
        """Read and prepare a picture, a sound or a video.

        Raises
        ------
        MediaError
            It cannot be read.
        OptionError, ModelError, OutOfMemory
            See `get`.
        """
        # Imported here: a server imports this module, and reads no pictures itself.
        from wgpu_backend.files.media.pictures import read_frames, read_picture

        tower = self.get("image" if part.kind == "video" else part.kind)
        source: Any = part.source
        if part.kind == "video":
            fps = _check_fps(part.fps)
            return tower.prepare_video(read_frames(source, fps), fps), tower
        if part.kind == "image":
            return tower.prepare(read_picture(source)), tower
        return tower.prepare(load_sound(source, max_seconds=tower.max_seconds)), tower

    def raw(self, prompter: Prompter, text: str, parts: Sequence[Part]) -> Prompt:
        """Tokenize a raw prompt with pictures and sounds; see `place_raw`."""
        prepared = [self.prepare(part) for part in parts]
        own = chain.from_iterable(map(get_markers, prepared))
        return place_raw(prompter, text, prepared, [*dict.fromkeys([*self.markers, *own])])

    def insert(self, placed: Sequence[Placed]) -> Inserted:
        """Return the inputs that replace a prompt's stand-ins, with no rows encoded yet."""
        inputs = self._model.inputs()
        return Inserted(placed, find_cols(self._model) or 0, POSITIONS in inputs)

    def embed(self, part: Part) -> F32s:
        """Return the vector of a picture, (cols,), in the space of the model's texts.

        Raises
        ------
        MediaError
            It cannot be read.
        OptionError, ModelError, OutOfMemory
            The model embeds texts only, or see `get`.
        """
        if not self._model.shared_cols:
            raise OptionError(
                f"{self._text.file.path}: architecture {self._text.config.architecture!r} embeds "
                f"texts only, {_NAMES[part.kind]} were given; needs a model such as CLIP or SigLIP"
            )
        media, tower = self.prepare(part)

        def run() -> F32s:
            self._settle()
            return self._graphs[id(tower)].run(media)

        [vector] = self.alone(run)
        return vector

    def encode(self, placed: Placed) -> F32s:
        """Return the rows of a picture or sound. No other thread may use the device meanwhile."""
        inserted = self.insert([placed])
        while not inserted.rows:
            self.advance(inserted, 0, WHOLE_SECONDS, together=2)
        return inserted.rows[0]

    def advance(self, inserted: Inserted, index: int, seconds: float, *, together: int = 1) -> None:
        """Run a piece of the tower for a picture or a sound; see `Encoding.advance`.

        Its rows are in ``inserted.rows`` after the last piece. One encoding at most is under way:
        while another request waits for it, the piece is one of that. No other thread may use the
        device meanwhile.
        """
        placed = inserted.placed[index]
        digest = placed.media.digest
        if self._go_on(inserted, digest, seconds, together=together):
            return
        rows, begin = self._rows.find(digest), time.perf_counter()
        if rows is None:
            now = self._now
            if now is None or now.digest != digest:
                self._settle()
                graphs = self._graphs[id(placed.tower)]
                self._now = now = _Now(digest, graphs, graphs.begin(placed.media))
            now.wanted_by = weakref.ref(inserted)
            try:
                # A new graph was built in part of the time.
                left = max(begin + seconds - time.perf_counter(), 0)
                now.encoding.advance(left, together=together)
                rows = self._take(now)
            except BaseException:
                self._stop()
                raise
        if rows is not None:
            inserted.rows[index] = rows

    def _go_on(self, asking: Inserted, digest: bytes, seconds: float, *, together: int) -> bool:
        """Run a piece of the encoding that another request waits for; False if there is none."""
        now = self._now
        if now is None or now.digest == digest or self._rows.find(digest) is not None:
            return False
        if now.is_wanted_by(None) or now.is_wanted_by(asking):
            return False
        try:
            now.encoding.advance(seconds, together=together)
            self._take(now)
        except DeviceLost:
            raise
        except BackendError:
            # Whoever waits for it begins again, and gets the error.
            self._stop()
        return True

    def _take(self, now: _Now) -> F32s | None:
        """Return and keep the rows of an encoding that has ended; None if pieces are left."""
        if now.encoding.values is None:
            return None
        self._stop()
        rows = now.graphs.check(now.encoding.values)
        self._rows.add(now.digest, rows)
        return rows

    def drop(self, inserted: Inserted) -> None:
        """Run no more pieces for a request that has ended."""
        if self._now is not None and self._now.is_wanted_by(inserted):
            self._stop()

    def _stop(self) -> None:
        """End the encoding that is under way."""
        if self._now is not None:
            self._now.encoding.close()
            self._now = None

    def _settle(self) -> None:
        """Run the pieces that are left of the encoding under way, if a request waits for them."""
        now = self._now
        if now is not None and not now.is_wanted_by(None):
            # Whoever waits for it begins again, and gets the error.
            with suppress(BackendError):
                now.encoding.finish()
                self._take(now)
        self._stop()

    def close(self) -> None:
        """Release graphs and the file; the language model's backend releases the weights."""
        self._stop()
        for graphs in self._graphs.values():
            graphs.close()
        self._graphs.clear()
        if self._file is not None:
            self._file.close()
