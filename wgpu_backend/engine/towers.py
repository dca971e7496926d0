"""The encoders of pictures and sounds, called towers, of a loaded language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from wgpu_backend.engine.media import (
    MARKER,
    F32s,
    Inserted,
    Part,
    Placed,
    Prompt,
    TowerRows,
    get_markers,
    place_raw,
)
from wgpu_backend.engine.prompt import Prompter
from wgpu_backend.errors import GGUFError, ModelError, OptionError
from wgpu_backend.files.gguf.reader import GGUFFile
from wgpu_backend.files.media.sounds import load_sound
from wgpu_backend.files.tower_files import open_tower
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Recorded
from wgpu_backend.nn.model import Model
from wgpu_backend.nn.model_inputs import RowsInput
from wgpu_backend.nn.rope import POSITIONS
from wgpu_backend.nn.tower import Media, Tower, projector_kinds, tower_class
from wgpu_backend.nn.transformer import EMBEDDINGS

# Recorded graphs of a tower, one for each shape of its inputs; the least recently used goes first.
MOST_GRAPHS = 8
# Host memory for the encoded rows of the latest pictures.
ROWS_NBYTES = 128 << 20
Item = TypeVar("Item")
Alone = Callable[[Callable[[], Item]], Item]
_NAMES = {"image": "pictures", "audio": "sound"}
_Key = tuple[tuple[str, tuple[int, ...], str], ...]


def _check_fps(fps: object) -> float:
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < 1e6:
        raise OptionError(f"fps: {fps!r}, needs a number above 0: frames in a second of a video")
    return float(fps)


def _run(act: Callable[[], Item]) -> Item:
    return act()


class Graphs:
    """The recorded graphs of one tower, by the shapes of its inputs."""

    def __init__(self, tower: Tower) -> None:
        self._tower = tower
        self._recorded: dict[_Key, tuple[Context, Recorded]] = {}

    def run(self, media: Media) -> F32s:
        """Return the rows of a prepared picture or sound: (rows, cols)."""
        key = tuple((name, a.shape, a.dtype.str) for name, a in sorted(media.arrays.items()))
        found = self._recorded.pop(key, None)
        if found is None:
            while len(self._recorded) >= MOST_GRAPHS:
                self._close(*self._recorded.pop(next(iter(self._recorded))))
            found = self._record(media)
        # The one used last is at the end.
        self._recorded[key] = found
        [rows] = found[1].run(media.arrays).wait()
        if not np.isfinite(rows).all():
            raise self._tower.fail("a tower's result is not finite; the file is damaged")
        return rows.copy()

    def _record(self, media: Media) -> tuple[Context, Recorded]:
        tower = self._tower
        context = Context(tower.backend.executor)
        try:
            inputs = {n: context.input(n, a.shape, a.dtype) for n, a in media.arrays.items()}
            y = tower.encode(context, inputs)
            if y.shape != (media.rows, tower.cols):
                raise tower.fail(
                    f"the tower's result has shape {y.shape}, needs {(media.rows, tower.cols)}"
                )
            return context, context.record(y)
        except BaseException:
            context.close()
            raise

    @staticmethod
    def _close(context: Context, recorded: Recorded) -> None:
        recorded.close()
        context.close()

    def close(self) -> None:
        """Release all graphs; safe to call again."""
        while self._recorded:
            self._close(*self._recorded.popitem()[1])


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
    """

    def __init__(self, backend: Backend, model: Model, mmproj: Path | None) -> None:
        self._text = backend
        self._model = model
        self._mmproj = mmproj
        self.alone: Alone[Any] = _run
        self._backend: Backend | None = None
        self._file: GGUFFile | None = None
        self._kinds: dict[str, str] | None = None
        self._towers: dict[str, Tower] = {}
        self._graphs: dict[int, Graphs] = {}
        self._rows = TowerRows(ROWS_NBYTES)

    @property
    def modalities(self) -> Sequence[str]:
        """Return which of ``image`` and ``audio`` the model takes, without loading weights.

        Raises
        ------
        ModelError
            `mmproj` is damaged, or several files of the folder fit.
        """
        if self._kinds is None:
            takes = self._model.shared_cols or EMBEDDINGS in self._model.inputs()
            self._file = open_tower(self._text.file, self._mmproj) if takes else None
            self._kinds = {} if self._file is None else projector_kinds(self._file.config)
        return [*self._kinds]

    def has(self, modality: str) -> bool:
        """Return whether there is one tower for that; loads nothing and raises nothing."""
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

    def _lacking(self, modality: str) -> str:
        name, what = self._text.file.path, _NAMES[modality]
        architecture = self._text.config.architecture
        if not self._model.shared_cols and EMBEDDINGS not in self._model.inputs():
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
        rows = self._model.inputs().get(EMBEDDINGS)
        wanted = rows.cols if isinstance(rows, RowsInput) else self._model.shared_cols
        if wanted != tower.cols:
            # A server answers such a file of its store like a damaged one.
            raise GGUFError(
                f"{tower.backend.file.path}: its rows have {tower.cols} columns, "
                f"{self._text.file.path} needs {wanted}: the tower belongs to another "
                "model; use this model's mmproj"
            )

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
        from wgpu_backend.files.media.pictures import read_frames, read_pixels

        tower = self.get("image" if part.kind == "video" else part.kind)
        source: Any = part.source
        if part.kind == "video":
            return tower.prepare_video(read_frames(source), _check_fps(part.fps)), tower
        if part.kind == "image":
            return tower.prepare(read_pixels(source)), tower
        return tower.prepare(load_sound(source)), tower

    def raw(self, prompter: Prompter, text: str, parts: Sequence[Part]) -> Prompt:
        """Tokenize a raw prompt with pictures and sounds; see `place_raw`."""
        prepared = [self.prepare(part) for part in parts]
        own = chain.from_iterable(map(get_markers, prepared))
        return place_raw(prompter, text, prepared, [*dict.fromkeys([*self.markers, *own])])

    def insert(self, placed: Sequence[Placed]) -> Inserted:
        """Return the inputs that replace a prompt's stand-ins, with no rows encoded yet."""
        inputs = self._model.inputs()
        wanted = inputs.get(EMBEDDINGS)
        cols = wanted.cols if isinstance(wanted, RowsInput) else 0
        return Inserted(placed, cols, POSITIONS in inputs)

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
        [vector] = self.alone(lambda: self._graphs[id(tower)].run(media))
        return vector

    def encode(self, placed: Placed) -> F32s:
        """Return the rows of a picture or sound. No other thread may use the device meanwhile."""
        graphs = self._graphs[id(placed.tower)]
        return self._rows.get(placed.media.digest, lambda: graphs.run(placed.media))

    def close(self) -> None:
        """Release graphs and the file; the language model's backend releases the weights."""
        for graphs in self._graphs.values():
            graphs.close()
        self._graphs.clear()
        if self._file is not None:
            self._file.close()
