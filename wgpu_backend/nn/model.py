"""The `Model` base class, and the registry of architectures by the name in a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules
from typing import ClassVar, Protocol, TypeVar
from warnings import warn

from wgpu_backend.dtypes import F16, DType
from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.fused_weights import FusedWeights
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.kvcache.cache import Cache
from wgpu_backend.nn.kvcache.factory import make_cache
from wgpu_backend.nn.kvcache.layers import LayerCache
from wgpu_backend.nn.layers import Embedding, Linear
from wgpu_backend.nn.low_rank import LowRank
from wgpu_backend.nn.model_inputs import ModelInput
from wgpu_backend.nn.module import FileModule, modules
from wgpu_backend.ops import plugins


class PromptEncoder(Protocol):
    """The encoder of an encoder-decoder model, and its outputs that the decoder uses."""

    @property
    def encoder(self) -> Model:
        """Return the model that reads a whole prompt."""
        ...

    @property
    def start(self) -> int:
        """Return the token that every answer begins with, before the decoder's own tokens."""
        ...

    def project_states(self, states: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        """Return each layer's keys and values, (tokens, cols) each, of the encoder's states."""
        ...


class Model(FileModule, ABC):
    """An architecture with weights.

    A subclass declares its weights as fields, reads its options in `__init__` from
    ``self.config`` after calling ``super().__init__(backend)``, and computes in `hidden`.

    Parameters
    ----------
    backend : Backend
        With weights loaded.

    Attributes
    ----------
    fused_weights : sequence of sequence of str
        Weights of a block to store next to each other, see ``Backend.load``.
    causal : bool
        Whether tokens attend to earlier tokens only. Otherwise a text has to be one pass.
    takes_sound : bool
        Whether the prompt is a sound, as in `wgpu_backend.engine.speech`.
    scored_pooling : str
        The state of a text that `score` uses: the first token's (``"cls"``), the ``"last"`` one's
        or the ``"mean"``.
    steerable : bool
        Whether `hidden` adds `directions`.
    directions : mapping of int to Tensor
        Control vectors, added to the states after a layer: (width,), f32.
    logit_cols : int or None
        Number of tokens that have a logit, if the last rows of the embedding are only read.
    variant : hashable
        Key of the current adapters and directions. Graphs recorded for another variant are not
        reused.

    Raises
    ------
    ModelError
        A weight or a key is missing or has a wrong value or shape.
    """

    fused_weights: ClassVar[FusedWeights] = ()
    architectures: ClassVar[tuple[str, ...]] = ()
    causal: ClassVar[bool] = True
    takes_sound: ClassVar[bool] = False
    scored_pooling: str = "cls"
    steerable: ClassVar[bool] = False
    logit_cols: int | None = None
    variant: Hashable = ()

    def __init_subclass__(cls) -> None:
        """Treat an override of `reader` as `prompt_encoder`: the old name works for one release."""
        super().__init_subclass__()
        if "reader" in vars(cls):
            warn(f"{cls.__name__}.reader is now prompt_encoder", DeprecationWarning, stacklevel=2)
            cls.prompt_encoder = vars(cls)["reader"]

    def __init__(self, backend: Backend) -> None:
        self.directions: Mapping[int, Tensor] = {}
        self._used: set[str] = set()
        super().__init__(backend)

    def find_weight(self, name: str) -> Tensor | None:
        """Return the weight of a name, or None, and note the name for `require_all_used`."""
        self._used.add(name)
        return super().find_weight(name)

    def adaptable(self) -> dict[str, list[Linear | Embedding]]:
        """Return the modules that adapters can change, by the name of their weight in the file.

        These are linear layers and token embeddings. Where the embeddings are also the output
        matrix, the name stands for the embeddings; the output matrix is not changed.
        """
        found: dict[str, list[Linear | Embedding]] = {}
        # Embeddings first: a tied matrix is both, and its name stands for them.
        for kind in (Embedding, Linear):
            names = set(found)
            for module in modules(self):
                name = f"{module.full_name}weight"
                embeds = name.endswith("token_embd.weight")
                if isinstance(module, kind) and name not in names and (embeds or kind is Linear):
                    found.setdefault(name, []).append(module)
        return found

    def adapt(self, adapters: Mapping[str, Sequence[LowRank]]) -> None:
        """Set the adapters of the weights named by `adaptable`; other weights get none.

        Graphs recorded from then on include them, so `variant` has to change as well.
        """
        for name, adapted in self.adaptable().items():
            for module in adapted:
                module.adapters = tuple(adapters.get(name, ()))

    def require_all_used(self, layers: int, elsewhere: tuple[str, ...] = ()) -> None:
        """Raise if the file has weights that no field took: the results would be wrong.

        Parameters
        ----------
        layers : int
            Number of layers in use. Weights of further layers, such as those for multi-token
            prediction, are ignored.
        elsewhere : tuple of str
            Prefixes of weights that belong to another model in the same file.

        Raises
        ------
        ModelError
            There is such a weight.
        """
        for name, info in self.backend.file.tensors.items():
            parts = name.split(".")
            further = parts[0] == "blk" and parts[1].isdigit() and int(parts[1]) >= layers
            # A tensor without elements cannot change a result.
            further |= name.startswith(elsewhere) or not info.nbytes
            if not further and name not in self._used:
                architecture = self.config.architecture
                raise self.fail(f"unexpected tensor {name} for architecture {architecture!r}")

    def fit_context(self, positions: int) -> None:
        """Set the context length; override it if weights depend on the length.

        Called before the first pass. Does nothing by default: a model is made for the context
        length of its file.

        Parameters
        ----------
        positions : int
            Most positions of a sequence.
        """

    def context_limit(self) -> int | None:
        """Return the most positions supported, as by a learned table; None if unlimited."""
        return None

    @abstractmethod
    def cache_layers(self) -> Sequence[LayerCache]:
        """Return the cache entries of each layer, see `kvcache.layers`."""

    def make_cache(
        self, executor: Executor, sequences: int, positions: int, dtype: DType = F16
    ) -> Cache:
        """Make the cache that the model's passes need: by default that of `cache_layers`.

        Parameters
        ----------
        sequences : int
            Sequences that may be long at the same time.
        positions : int
            Total positions of all sequences.
        dtype : DType
            Type of keys and values; see `PagedCache`.

        Raises
        ------
        DTypeError, ShapeError
            Keys or values cannot have that type.
        OutOfMemory
            The cache does not fit; nothing stays allocated.
        """
        return make_cache(executor, self.cache_layers(), sequences, positions, dtype)

    def prompt_encoder(self) -> PromptEncoder | None:
        """Return the encoder that reads prompts for the decoder; None for decoder-only models."""
        return None

    def project_rows(self, rows: Tensor) -> Mapping[int, tuple[Tensor, Tensor]]:
        """Return keys and values, (rows, cols) each, of a picture's rows, by layer.

        Only for models with an `AttendedInput`.

        Parameters
        ----------
        rows : (rows, cols), f32
            Rows of a tower.
        """
        return {}

    def inputs(self) -> Mapping[str, ModelInput]:
        """Return the model inputs in addition to tokens, by name; see `nn.model_inputs`."""
        return {}

    @abstractmethod
    def hidden(self, batch: Batch) -> Tensor:
        """Return the states of the output rows after the last norm: (outputs, cols), f32."""

    @property
    def has_logits(self) -> bool:
        """Return whether the model has logits; an encoder does not."""
        return type(self).logits is not Model.logits

    def require_logits(self) -> None:
        """Raise if the model has no logits.

        Raises
        ------
        ModelError
            The model is an encoder.
        """
        if not self.has_logits:
            raise self._no_logits()

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of every vocabulary entry: (outputs, vocabulary), f32.

        Raises
        ------
        ModelError
            The model has no logits.
        """
        raise self._no_logits()

    def _no_logits(self) -> ModelError:
        name = self.config.architecture
        return self.fail(f"{name} is an encoder and has no logits; use embed")

    def vector(self, pooled: Tensor) -> Tensor:
        """Map pooled states, (texts, cols), to embeddings, before they are normalised."""
        return pooled

    @property
    def shared_cols(self) -> int | None:
        """Return the columns of vectors that texts share with pictures; None for texts alone."""
        return None

    def fit_text(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens of a text to embed as the model needs them, such as padded."""
        return list(tokens)

    def score(self, pooled: Tensor) -> Tensor:
        """Return the scores of pooled states, see `scored_pooling`: (texts, classes), f32.

        Raises
        ------
        ModelError
            The model is not a reranker.
        """
        raise self.not_a_reranker()

    @property
    def is_reranker(self) -> bool:
        """Return whether the file has weights that score a text."""
        return False

    def not_a_reranker(self) -> ModelError:
        """Return the error for a model without weights that score a text."""
        return self.fail(
            "it is not a reranker: it has no weights that score a text (cls.output); rerank needs "
            "a model such as bge-reranker-v2-m3"
        )

    def require_shapes(self, wanted: Mapping[str, tuple[int, ...]]) -> None:
        """Raise if shapes of weights contradict the file's keys; broadcasting would hide it.

        Parameters
        ----------
        wanted : mapping of str to tuple of int
            Row-major shapes by GGUF name; weights may be missing from the file.

        Raises
        ------
        ModelError
            A shape differs.
        """
        for name, info in self.backend.file.tensors.items():
            shape = wanted.get(name, info.shape)
            if info.shape != shape:
                raise self.fail(f"tensor {name} is {info.shape}, the file's keys require {shape}")


M = TypeVar("M", bound=type[Model])
# A folder that is listed: a new model file needs no entry anywhere.
_MODELS = "wgpu_backend.models"
_ARCHITECTURES: dict[str, type[Model]] = {}


def architecture(*names: str) -> Callable[[M], M]:
    """Register a model class under names of ``general.architecture``.

    Raises
    ------
    ModelError
        There is no name, a name is taken, or the class is not a complete `Model`.
    """
    if not names or not all(isinstance(name, str) for name in names):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ModelError('architecture: a name is needed, as in @architecture("my-model")')

    def register(model: M) -> M:
        _require_complete(names[0], model)
        for name in names:
            _require_free(name, model)
        model.architectures = names
        for name in names:
            _ARCHITECTURES[name] = model
            plugins.note(f"architecture {name}")
        return model

    return register


def _require_complete(name: str, model: type[Model]) -> None:
    """Raise if the class could not be instantiated when a file names it."""
    if not issubclass(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance] outside it may
        raise ModelError(
            f"architecture {name}: {model.__name__} is not a wgpu_backend.Model; inherit from "
            "wgpu_backend.Decoder"
        )
    lacking = ", ".join(sorted(model.__abstractmethods__))
    if lacking:
        raise ModelError(
            f"architecture {name}: {model.__name__} lacks {lacking}, which it has to define"
        )


def _require_free(name: str, model: type[Model]) -> None:
    if not model.__module__.startswith("wgpu_backend."):
        # Otherwise the package's own model, imported later, would be the one that fails.
        _import_own()
    if name in _ARCHITECTURES:
        first = _ARCHITECTURES[name]
        raise ModelError(
            f"architecture {name}: already registered by {first.__module__}.{first.__qualname__}; "
            "choose another name, here and in the file's general.architecture"
        )


def architectures() -> dict[str, type[Model]]:
    """Return every known architecture: of the `models` folder, of plugins, and registered."""
    _import_own()
    # After the package's own, so that a plugin with a name that is taken is the one that fails.
    plugins.load("wgpu_backend.architectures")
    return dict(sorted(_ARCHITECTURES.items()))


def _import_own() -> None:
    # The folder is listed, so that no module below the models names one of them.
    package = import_module(_MODELS)
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")


def _nearest(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def model_class(config: Config) -> type[Model]:
    """Return the class for the architecture a file names.

    Raises
    ------
    ModelError
        No class is registered for it.
    """
    known = architectures()
    if config.architecture not in known:
        raise ModelError(
            f"{config.source}: architecture {config.architecture!r} is unknown"
            f"{_nearest(config.architecture, known)}; docs/models.md lists the {len(known)} known "
            "ones; to add your own, `import my_model` before load(), or use "
            "`wgpu-backend run --import my_model.py MODEL`"
        )
    return known[config.architecture]
