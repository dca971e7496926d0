"""A model of a file: weights on a device, what its file says, and its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, cast
from weakref import WeakSet

import numpy as np

from wgpu_backend.engine.adapters import scaled_files
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.loading import bundled, load
from wgpu_backend.engine.turns import Turns
from wgpu_backend.errors import BackendError, ModelError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.files.gguf.reader import GGUFFile, open_gguf
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.llama.vocabulary import Tokens
from wgpu_backend.nn.model import Model as Architecture
from wgpu_backend.nn.model import model_class
from wgpu_backend.text.tokenizer import Tokenizer

Result = TypeVar("Result")
ProgressCallback = Callable[[float], "bool | None"]
Scales = Sequence[tuple[Path, float]]


class Closing:
    """Something that a model closes before itself."""

    def close(self) -> None:
        """Release what it holds; again is harmless."""


class Model(Tokens):
    """A model, from which contexts are made: llama.h's ``llama_model`` and ``llama_vocab``.

    Safe in threads: what contexts of one model compute, they compute in turns. Close it, or use it
    as a context manager; its contexts are closed with it.

    Parameters
    ----------
    path : path-like or None
        GGUF file, or folder; None for the bundled story model.
    device : str, int, DeviceInfo or None
        As `wgpu_backend.load` takes it: ``"cpu"`` is NumPy.
    vocab_only : bool
        Read tokens and keys alone: nothing can be computed.
    exact : bool
        Keep activations in f32 where products would be faster with rounded ones.
    progress_callback : callable or None
        Called with the share of weights that is loaded, 0 to 1; false ends loading.

    Raises
    ------
    GGUFError, ModelError, TokenizerError
        The file is damaged, or of a kind that is not known.
    DeviceError, OutOfMemory
        There is no such device, or the model does not fit on it.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        device: str | int | DeviceInfo | None = None,
        vocab_only: bool = False,
        exact: bool = False,
        progress_callback: ProgressCallback | None = None,
    ) -> None:
        self.path = bundled() if path is None else Path(path)
        self._turns = Turns()
        self._contexts: WeakSet[Closing] = WeakSet()
        self._prepared: tuple[int, Scales] = (1, ())
        self._closed = False
        self._language: LanguageModel | None = None
        if vocab_only:
            with open_gguf(self.path) as file:
                self._describe(file)
            return
        self._language = _loaded(self.path, device, exact, progress_callback)
        self._describe(self._language.backend.file)

    def _describe(self, file: GGUFFile) -> None:
        self.config: Config = file.config
        self._tensors = dict(file.tensors)
        language = self._language
        found = language.tokenizer if language else Tokenizer.from_metadata(file.metadata)
        rows = language.vocabulary if language else found.vocab_size
        super().__init__(file.metadata, found, rows)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def language(self) -> LanguageModel:
        """What computes.

        Raises
        ------
        BackendError
            The model was closed.
        ModelError
            It was made with ``vocab_only``.
        """
        self.require_open()
        if self._language is None:
            raise ModelError(f"{self.path}: was loaded with vocab_only, it can compute nothing")
        return self._language

    def require_open(self) -> None:
        """Fail where the model was closed.

        Raises
        ------
        BackendError
            It was.
        """
        if self._closed:
            raise BackendError(f"{self.path}: the model was closed; load it again")

    # What the file says.

    def _uint(self, key: str) -> int:
        return self.config.uint(key, 0)

    def n_ctx_train(self) -> int:
        """Positions that the model was trained on; 0 where the file does not say."""
        return self._uint("context_length")

    def n_embd(self) -> int:
        """Width of a state."""
        return self._uint("embedding_length")

    def n_layer(self) -> int:
        """Layers."""
        return self._uint("block_count")

    def _of_first_layer(self, key: str) -> int:
        if key not in self.config:
            return 0
        return self.config.uint_per_layer(key, self.n_layer())[0]

    def n_head(self) -> int:
        """Heads of the first layer's attention."""
        return self._of_first_layer("attention.head_count")

    def n_head_kv(self) -> int:
        """Heads of its keys and values."""
        return self._of_first_layer("attention.head_count_kv") or self.n_head()

    def n_swa(self) -> int:
        """Positions of a sliding window; 0 for none."""
        return self._uint("attention.sliding_window")

    def rope_freq_scale_train(self) -> float:
        """Factor of positions that the file asks for."""
        factor = self.config.float("rope.scaling.factor", 1.0)
        return 1.0 / factor if factor else 1.0

    def desc(self) -> str:
        """Architecture and parameters, such as ``llama 1.1B``."""
        count = self.n_params()
        unit, per = next(
            ((u, p) for u, p in (("B", 1e9), ("M", 1e6), ("K", 1e3)) if count >= p), ("", 1)
        )
        return f"{self.config.architecture} {count / per:.2f} {unit}".rstrip()

    def size(self) -> int:
        """Bytes of the weights in the file."""
        return sum(info.nbytes for info in self._tensors.values())

    def n_params(self) -> int:
        """Weights."""
        return sum(int(np.prod(info.shape)) for info in self._tensors.values())

    def has_encoder(self) -> bool:
        """Whether an encoder reads prompts for a decoder, or there is an encoder alone."""
        return (
            self.language.model.prompt_encoder() is not None or not self.language.model.has_logits
        )

    def has_decoder(self) -> bool:
        """Whether next tokens are scored."""
        return model_class(self.config).logits is not Architecture.logits

    def decoder_start_token(self) -> int:
        """Token that answers begin with where an encoder reads prompts; else -1."""
        reader = self.language.model.prompt_encoder()
        return -1 if reader is None else reader.start

    def is_recurrent(self) -> bool:
        """Whether some layer keeps a state in place of keys and values: also of hybrids."""
        return f"{self.config.architecture}.ssm.state_size" in self._metadata or (
            f"{self.config.architecture}.wkv.head_size" in self._metadata
        )

    def metadata(self, *, arrays: bool = True) -> dict[str, str]:
        """Keys of the file and their values as text; arrays say their length, or are left out."""
        return {
            key: _text(value)
            for key, value in self._metadata.items()
            if arrays or not isinstance(value, list | np.ndarray)
        }

    def meta_val_str(self, key: str) -> str | None:
        """Value of a key as text; None where the file has no such key."""
        value = self._metadata.get(key)
        return None if value is None else _text(value)

    def meta_count(self) -> int:
        """Keys of the file."""
        return len(self._metadata)

    def meta_key_by_index(self, index: int) -> str:
        """Key in the file's order."""
        return list(self._metadata)[index]

    def meta_val_str_by_index(self, index: int) -> str:
        """Its value as text."""
        return _text(self._metadata[self.meta_key_by_index(index)])

    def chat_template(self, name: str | None = None) -> str | None:
        """Template of conversations, or the one of this name; None for none."""
        key = "tokenizer.chat_template" + (f".{name}" if name else "")
        value = self._metadata.get(key)
        return value if isinstance(value, str) else None

    # For contexts.

    def alone(self, act: Callable[[], Result]) -> Result:
        """Run something while no other thread computes with the model."""

        def checked() -> Result:
            self.require_open()
            return act()

        return self._turns.take(checked)

    def keep(self, context: Closing) -> None:
        """Close something before the model."""
        self._contexts.add(context)

    def prepare(self, n_ctx: int, adapters: Scales) -> None:
        """Have the model be what a context needs: for so many positions, with these adapters."""
        before, wanted = self._prepared, (n_ctx, tuple(adapters))
        if before == wanted:
            return
        if before[0] != n_ctx:
            self.language.model.fit_context(n_ctx)
        if before[1] != wanted[1]:
            self.language.adapters.set_loras(scaled_files("adapters", list(adapters)))
        self._prepared = wanted

    def close(self) -> None:
        """Release the contexts and the device, after what is under way; again is harmless."""
        self._turns.take(self._close)

    def _close(self) -> None:
        for context in list(self._contexts):
            context.close()
        self._closed = True
        if self._language is not None:
            self._language.close()


def _loaded(
    path: Path,
    device: str | int | DeviceInfo | None,
    exact: bool,
    callback: ProgressCallback | None,
) -> LanguageModel:
    """Load a model whose own context is as small as can be: contexts have their own."""
    ended = False

    def progress(share: float) -> None:
        nonlocal ended
        if callback is not None and callback(share) is False:
            ended = True

    return load(
        path, device=device, num_ctx=1, exact=exact, progress=progress, cancelled=lambda: ended
    )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | np.ndarray):
        return f"[{len(cast('Sequence[object]', value))} values]"
    return str(value)
