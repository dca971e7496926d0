"""Model: what every architecture is, and how one is found by the name in a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules
from typing import ClassVar, Protocol, TypeVar

from wgpu_backend.dtypes import F16, DType
from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.fused_weights import FusedWeights
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.kvcache.cache import Cache
from wgpu_backend.nn.kvcache.layers import LayerCache
from wgpu_backend.nn.kvcache.making import cache_of
from wgpu_backend.nn.layers import Embedding, Linear
from wgpu_backend.nn.low_rank import LowRank
from wgpu_backend.nn.model_inputs import Given
from wgpu_backend.nn.module import Module, modules, populate
from wgpu_backend.ops import plugins


class Reader(Protocol):
    """The encoder of a model of an encoder and a decoder, and what the decoder takes of it."""

    @property
    def encoder(self) -> Model:
        """Reads a prompt, whole."""
        ...

    @property
    def start(self) -> int:
        """Token that an answer begins with, before any that the decoder makes."""
        ...

    def encoded(self, states: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        """Keys and values, (tokens, cols) each, of the encoder's states for each layer."""
        ...


class Model(Module, ABC):
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
        Weights of a block to lay side by side, see ``Backend.load``.
    causal : bool
        Whether tokens see none that come later. Where they do, a text is one pass, whole.
    scored_pooling : str
        Which state of a text `score` takes: the first token's (``"cls"``), the ``"last"`` one's, or
        the ``"mean"``.
    steerable : bool
        Whether `hidden` takes `directions`.
    directions : mapping of int to Tensor
        What is added to states behind a layer: (width,), f32.
    variant : hashable
        Tells apart what was done to the model since it was made: graphs that were recorded for
        another variant are not this model's.

    Raises
    ------
    ModelError
        A weight or a key is missing or does not fit.
    """

    fused_weights: ClassVar[FusedWeights] = ()
    architectures: ClassVar[tuple[str, ...]] = ()
    causal: ClassVar[bool] = True
    scored_pooling: str = "cls"
    steerable: ClassVar[bool] = False
    variant: Hashable = ()

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.directions: Mapping[int, Tensor] = {}
        self._used: set[str] = set()
        self.fill(self)

    @property
    def config(self) -> Config:
        """Keys and values of the model's file."""
        return self.backend.config

    def fill(self, module: Module, prefix: str = "") -> None:
        """Fill the fields of a module with the weights below a name.

        Raises
        ------
        ModelError
            One is missing, or has another shape than the fields say.
        """
        try:
            populate(module, self._take, prefix)
        except ModelError as error:
            raise self.fail(str(error)) from None

    def _take(self, name: str) -> Tensor | None:
        self._used.add(name)
        return self.backend.get(name)

    def adaptable(self) -> dict[str, list[Linear | Embedding]]:
        """What adapters may change, by the name of its weight in the file.

        Products, and embeddings of tokens; where these also score tokens, the name means the
        embeddings, and scores stay as they are.
        """
        found: dict[str, list[Linear | Embedding]] = {}
        for kind in (Embedding, Linear):
            names = set(found)
            for module in modules(self):
                name = f"{module.full_name}weight"
                embeds = name.endswith("token_embd.weight")
                if isinstance(module, kind) and name not in names and (embeds or kind is Linear):
                    found.setdefault(name, []).append(module)
        return found

    def adapt(self, changes: Mapping[str, Sequence[LowRank]]) -> None:
        """Have weights changed by these, by the names of `adaptable`; others as the file has them.

        Graphs have it from then on: `variant` has to tell them from those before.
        """
        for name, those in self.adaptable().items():
            for module in those:
                module.changes = tuple(changes.get(name, ()))

    def require_all_used(self, layers: int, elsewhere: tuple[str, ...] = ()) -> None:
        """Refuse a file that has weights which no field took: without them answers are others.

        Parameters
        ----------
        layers : int
            Of further ones, such as those that predict several tokens, nothing is needed.
        elsewhere : tuple of str
            Names that begin so are another model's, which stands in the same file.

        Raises
        ------
        ModelError
            There is one.
        """
        for name, info in self.backend.file.tensors.items():
            parts = name.split(".")
            further = parts[0] == "blk" and parts[1].isdigit() and int(parts[1]) >= layers
            further |= name.startswith(elsewhere) or not info.nbytes
            if not further and name not in self._used:
                architecture = self.config.architecture
                raise self.fail(f"tensor {name} is none that architecture {architecture!r} has")

    def fit_context(self, positions: int) -> None:
        """Take in how many positions a sequence may have; nothing, unless a model minds.

        Called before the first pass. Until then a model is ready for the context its file names.

        Parameters
        ----------
        positions : int
            Most positions of a sequence.
        """

    def context_limit(self) -> int | None:
        """Most positions the model can tell apart, as a learned table of them; None for any."""
        return None

    @abstractmethod
    def cache_layers(self) -> Sequence[LayerCache]:
        """What each layer keeps of the past: an entry a layer, see `kvcache.layers`."""

    def make_cache(
        self, executor: Executor, sequences: int, positions: int, dtype: DType = F16
    ) -> Cache:
        """Cache that the model's passes need: of what `cache_layers` says, unless a model minds.

        Parameters
        ----------
        executor : Executor
        sequences : int
            How many may be long at once.
        positions : int
            Over all sequences.
        dtype : DType
            Of keys and values; see `PagedCache`.

        Raises
        ------
        DTypeError, ShapeError
            Keys or values cannot have that type.
        OutOfMemory
            It does not fit; nothing stays allocated.
        """
        return cache_of(executor, self.cache_layers(), sequences, positions, dtype)

    def reader(self) -> Reader | None:
        """Encoder that reads prompts for the model, which attends to them; None for none."""
        return None

    def inputs(self) -> Mapping[str, Given]:
        """What works may give beside tokens, by name; see `wgpu_backend.nn.model_inputs`."""
        return {}

    @abstractmethod
    def hidden(self, batch: Batch) -> Tensor:
        """States of the wanted rows after the last norm: (outputs, cols), f32."""

    @property
    def has_logits(self) -> bool:
        """Whether the model scores next tokens; an encoder does not."""
        return type(self).logits is not Model.logits

    def require_logits(self) -> None:
        """Refuse to go on where there are none.

        Raises
        ------
        ModelError
            The model is an encoder.
        """
        if not self.has_logits:
            raise self._no_logits()

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every vocabulary entry: (outputs, vocabulary), f32.

        Raises
        ------
        ModelError
            The model has none.
        """
        raise self._no_logits()

    def _no_logits(self) -> ModelError:
        name = self.config.architecture
        return self.fail(f"{name} is an encoder and has no logits; use embed")

    def vector(self, pooled: Tensor) -> Tensor:
        """What becomes of (texts, cols) states once a text has one, before its length is 1."""
        return pooled

    def score(self, pooled: Tensor) -> Tensor:
        """Scores of texts by one state of each, see `scored_pooling`: (texts, classes), f32.

        Raises
        ------
        ModelError
            The model is no reranker.
        """
        raise self.not_a_reranker()

    @property
    def is_reranker(self) -> bool:
        """Whether the file has weights that score a text."""
        return False

    def not_a_reranker(self) -> ModelError:
        """Return the error for a model without weights that score a text."""
        return self.fail(
            "it is not a reranker: it has no weights that score a text (cls.output); rerank needs "
            "a model such as bge-reranker-v2-m3"
        )

    def require_shapes(self, wanted: Mapping[str, tuple[int, ...]]) -> None:
        """Compare weights with what the keys of the file say; NumPy's rules would fit many more.

        Parameters
        ----------
        wanted : mapping of str to tuple of int
            Row-major shapes by GGUF name; of weights that the file may have or not.

        Raises
        ------
        ModelError
            One differs.
        """
        for name, info in self.backend.file.tensors.items():
            shape = wanted.get(name, info.shape)
            if info.shape != shape:
                raise self.fail(f"tensor {name} is {info.shape}, by the file's keys it is {shape}")

    def fail(self, message: str) -> ModelError:
        """Error that names the model's file."""
        return ModelError(f"{self.backend.file.path}: {message}")


M = TypeVar("M", bound=type[Model])
_MODELS = "wgpu_backend.models"  # a folder that is listed: no model is known by name here
_ARCHITECTURES: dict[str, type[Model]] = {}


def architecture(*names: str) -> Callable[[M], M]:
    """Register a model class under names of ``general.architecture``.

    Raises
    ------
    ModelError
        There is no name, one is taken, or the class is no `Model` or lacks methods of one.
    """
    if not names or not all(isinstance(name, str) for name in names):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ModelError('architecture: it needs a name, as @architecture("my-model")')

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
    """Refuse what could not be made when a file needs it."""
    if not issubclass(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance] outside it may
        raise ModelError(
            f"architecture {name}: {model.__name__} is no wgpu_backend.Model; inherit from "
            "wgpu_backend.Decoder"
        )
    lacking = ", ".join(sorted(model.__abstractmethods__))
    if lacking:
        raise ModelError(f"architecture {name}: {model.__name__} has no {lacking}, needs it")


def _require_free(name: str, model: type[Model]) -> None:
    if not model.__module__.startswith("wgpu_backend."):
        _import_own()  # or the package's model, imported later, would be the one that fails
    if name in _ARCHITECTURES:
        first = _ARCHITECTURES[name]
        raise ModelError(
            f"architecture {name}: registered already by {first.__module__}.{first.__qualname__}; "
            "choose another name, here and in the file's general.architecture"
        )


def architectures() -> dict[str, type[Model]]:
    """Every known architecture: of the package's `models` folder, of plugins, and registered."""
    _import_own()
    plugins.load("wgpu_backend.architectures")
    return dict(sorted(_ARCHITECTURES.items()))


def _import_own() -> None:
    # By listing a folder: nothing below the models knows one of them by name.
    package = import_module(_MODELS)
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")


def _nearest(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def model_class(config: Config) -> type[Model]:
    """Class for the architecture a file names.

    Raises
    ------
    ModelError
        Nobody registered it.
    """
    known = architectures()
    if config.architecture not in known:
        raise ModelError(
            f"{config.source}: architecture {config.architecture!r} is unknown"
            f"{_nearest(config.architecture, known)}; README lists the {len(known)} known ones; "
            "one of your own is known after `import my_model` before load(), or with "
            "`wgpu-backend run --import my_model.py MODEL`"
        )
    return known[config.architecture]
