"""A model file: tokens, metadata, and weights on a device.

`Tokens` is a class of its own since it needs neither weights nor a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast
from weakref import WeakSet

import numpy as np

from wgpu_backend.engine.adapters import scaled_files
from wgpu_backend.engine.fifo_lock import FifoLock
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.loading import bundled, load
from wgpu_backend.errors import BackendError, ModelError, TokenizerError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.files.gguf.reader import GGUFFile, open_gguf
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.ml.placement import Placement, PlacementOptions
from wgpu_backend.nn.model import Model as Architecture
from wgpu_backend.nn.model import model_class
from wgpu_backend.ops.sampling.host import Spelling
from wgpu_backend.text.grammar import GrammarVocabulary
from wgpu_backend.text.tokenizer import Tokenizer
from wgpu_backend.text.tokenizer.pieces import clean_spaces
from wgpu_backend.text.tokenizer.vocabulary import TokenType, Vocabulary, read_vocabulary

Result = TypeVar("Result")
ProgressCallback = Callable[[float], "bool | None"]
Scales = Sequence[tuple[Path, float]]


# LLAMA_TOKEN_NULL: the vocabulary has no such token.
NULL = -1
# The bits of ``LLAMA_TOKEN_ATTR_…``.
_ATTRIBUTES = {
    TokenType.UNDEFINED: 0,
    TokenType.UNKNOWN: 1,
    TokenType.UNUSED: 2,
    TokenType.NORMAL: 4,
    TokenType.CONTROL: 8,
    TokenType.USER_DEFINED: 16,
    TokenType.BYTE: 32,
}
# ``LLAMA_VOCAB_TYPE_…`` for each value of ``tokenizer.ggml.model``; 2 is BPE.
_VOCAB_TYPES = {
    "llama": 1, "gpt2": 2, "gemma4": 2, "hybriddna": 2, "whitespace": 2, "bert": 3, "t5": 4,
    "rwkv": 5, "plamo2": 6,
}  # fmt: skip
_SPM = 1
_WPM = 3


class Tokens:
    """The tokens of a model, which need only its metadata: the base class of `Model`.

    Parameters
    ----------
    metadata : mapping
        Key-value pairs of the file.
    rows : int
        Rows of the embedding. Files pad it, so that it may have more rows than there are tokens.
    """

    def __init__(self, metadata: Mapping[str, object], tokenizer: Tokenizer, rows: int) -> None:
        self.tokenizer = tokenizer
        self._rows = rows
        self._metadata = metadata

    @cached_property
    def grammars(self) -> GrammarVocabulary:
        """The vocabulary in the form that grammars are matched with."""
        return GrammarVocabulary(self.tokenizer, self._rows)

    @cached_property
    def spelling(self) -> Spelling:
        """The spelling of tokens, for DRY's breakers."""
        return Spelling(self.tokenizer)

    @cached_property
    def _table(self) -> Vocabulary:
        # Read on the first use: the tokenizer does not keep scores.
        return read_vocabulary(self._metadata)

    def n_vocab(self) -> int:
        """Return the number of rows, which is the number of logits."""
        return self._rows

    def vocab_type(self) -> int:
        """Return the tokenizer's algorithm: ``LLAMA_VOCAB_TYPE_…``; 0 if llama.cpp has none."""
        return _VOCAB_TYPES.get(self._table.model, 0)

    def tokenize(
        self, text: bytes | str, add_special: bool = True, special: bool = False
    ) -> list[int]:
        """Turn text into tokens.

        Parameters
        ----------
        text : bytes or str
            UTF-8; invalid bytes become U+FFFD.
        add_special : bool
            Add BOS and EOS if the file says so.
        special : bool
            Turn the spelling of control tokens into those tokens.
        """
        whole = text if isinstance(text, str) else bytes(text).decode("utf-8", "replace")
        return self.tokenizer.encode(whole, add_special=add_special, parse_special=special)

    def token_to_piece(self, token: int, special: bool = False) -> bytes:
        """Return the bytes of a token; none for a control token, unless `special` is true."""
        known = self._require_known(token)
        # A padding row.
        if known >= self.tokenizer.vocab_size:
            return b""
        hidden = not special and self.tokenizer.is_control(known)
        return b"" if hidden else self.tokenizer.token_bytes(known)

    def detokenize(
        self, tokens: Sequence[int], special: bool = False, *, remove_special: bool = False
    ) -> bytes:
        """Return the bytes of tokens, which may end within a character.

        As in llama.h, the leading space is dropped if the tokenizer adds one before texts. Spaces
        before punctuation are dropped if the file says so.

        Parameters
        ----------
        special : bool
            Spell control tokens.
        remove_special : bool
            Drop the BOS and the EOS that the tokenizer adds to texts.
        """
        shown, tokenizer = list(tokens), self.tokenizer
        strip = tokenizer.space_prefix
        if remove_special and tokenizer.add_bos and shown[:1] == [self.token_bos()]:
            # llama.cpp then keeps the space.
            shown, strip = shown[1:], False
        if remove_special and tokenizer.add_eos and shown[-1:] == [self.token_eos()]:
            shown = shown[:-1]
        pieces = [self.token_to_piece(token, special) for token in shown]
        if strip and pieces:
            pieces[0] = pieces[0].removeprefix(b" ")
        text = b"".join(pieces)
        if not tokenizer.cleans_spaces:
            return text
        # Bytes that are not UTF-8 pass through as surrogates: a text may end within a character.
        return clean_spaces(text.decode(errors="surrogateescape")).encode(errors="surrogateescape")

    def token_get_text(self, token: int) -> str:
        """Return the spelling in the file, such as ``Ġthe`` or ``▁the``; empty for padding rows."""
        known = self._require_known(token)
        return self.tokenizer.token_text(known) if known < self.tokenizer.vocab_size else ""

    def token_get_score(self, token: int) -> float:
        """Return the score in the file; 0 if it has none."""
        known = self._require_known(token)
        return self._table.scores[known] if known < len(self._table.scores) else 0.0

    def token_get_attr(self, token: int) -> int:
        """Return the type of a token in the file: ``LLAMA_TOKEN_ATTR_…``."""
        types, known = self.tokenizer.types, self._require_known(token)
        return _ATTRIBUTES[TokenType(types[known])] if known < len(types) else 0

    def is_eog(self, token: int) -> bool:
        """Return whether a token ends a generation."""
        return self._require_known(token) in self.tokenizer.eog_ids

    def is_control(self, token: int) -> bool:
        """Return whether a token is a control token; the unknown token and padding rows are not."""
        types, known = self.tokenizer.types, self._require_known(token)
        return known < len(types) and types[known] == TokenType.CONTROL

    def _find_special(self, role: str) -> int:
        return self.tokenizer.special_ids.get(role, NULL)

    def token_bos(self) -> int:
        """Return the token that begins a text; -1 for none, as for the tokens below."""
        return self._find_special("bos")

    def token_eos(self) -> int:
        """Return the token that ends a text."""
        return self._find_special("eos")

    def token_eot(self) -> int:
        """Return the token that ends a message."""
        return self._find_special("eot")

    def token_cls(self) -> int:
        """Return the token that a classifier's text begins with: BOS, as in llama.cpp."""
        return self.token_bos()

    def token_sep(self) -> int:
        """Return the token between two texts."""
        return self._find_special("sep")

    def token_pad(self) -> int:
        """Return the padding token."""
        return self._find_special("pad")

    def token_mask(self) -> int:
        """Return the token that stands for a masked one."""
        return self._find_special("mask")

    def token_nl(self) -> int:
        """Return the token of a line break.

        As in llama.cpp: the byte's token for SPM, the padding token for WPM, the first token of a
        line break's text for others. Without any of these it is the padding token.
        """
        kind = self.vocab_type()
        if kind == _SPM:
            found = [self.tokenizer.token_id(text) for text in ("<0x0A>", "\n")]
            return next((each for each in found if each is not None), self.token_pad())
        if kind == _WPM:
            return self.token_pad()
        made = self.tokenizer.encode("\n", add_special=False)
        return made[0] if made else self.token_pad()

    def token_fim(self, part: str) -> int:
        """Return a fill-in-the-middle token: ``pre``, ``suf``, ``mid``, ``pad``, ``rep``, ``sep``.

        Raises
        ------
        TokenizerError
            There is no such part.
        """
        parts = ("pre", "suf", "mid", "pad", "rep", "sep")
        if part not in parts:
            raise TokenizerError(f"token_fim: {part!r}, needs one of {', '.join(parts)}")
        return self._find_special(f"fim_{part}")

    def token_prefix(self) -> int:
        """Return the token that precedes the text before a gap."""
        return self.token_fim("pre")

    def token_middle(self) -> int:
        """Return the token that precedes the text in a gap."""
        return self.token_fim("mid")

    def token_suffix(self) -> int:
        """Return the token that precedes the text after a gap."""
        return self.token_fim("suf")

    def add_bos_token(self) -> bool:
        """Return whether texts begin with BOS."""
        return self.tokenizer.add_bos

    def add_eos_token(self) -> bool:
        """Return whether texts end with EOS."""
        return self.tokenizer.add_eos

    def _require_known(self, token: int) -> int:
        if 0 <= token < self._rows:
            return int(token)
        raise TokenizerError(f"token {token}: the vocabulary has {self._rows}, from 0")


class Closable:
    """An object that a model closes before itself."""

    def close(self) -> None:
        """Release resources. Calling it again does nothing."""


class Model(Tokens):
    """A model for contexts: llama.h's ``llama_model`` and ``llama_vocab``.

    Thread-safe: contexts of one model compute one after the other. Close it, or use it as a context
    manager; this closes its contexts too.

    Parameters
    ----------
    path : path-like or None
        GGUF file, or folder; None for the bundled story model.
    device : str, int, DeviceInfo or None
        As `wgpu_backend.load` takes it: ``"cpu"`` is NumPy.
    devices, placement
        As `wgpu_backend.load` takes them.
    vocab_only : bool
        Read only the tokenizer and the metadata; nothing can be computed.
    exact : bool
        Keep activations in f32, even if products with rounded ones are faster.
    progress_callback : callable or None
        Called with the fraction of weights that is loaded, 0 to 1; returning false ends loading.

    Raises
    ------
    GGUFError, ModelError, TokenizerError
        The file is damaged, or of an unknown kind.
    DeviceError, OutOfMemory
        There is no such device, or the model does not fit.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        device: str | int | DeviceInfo | None = None,
        devices: Sequence[str | int | DeviceInfo] | None = None,
        placement: PlacementOptions | Placement | None = None,
        vocab_only: bool = False,
        exact: bool = False,
        progress_callback: ProgressCallback | None = None,
    ) -> None:
        self.path = bundled() if path is None else Path(path)
        self._turns = FifoLock()
        # Weak references, so that unused contexts are collected before the model closes.
        self._contexts: WeakSet[Closable] = WeakSet()
        # Context length and adapters that the model is set to, see `prepare`. `_load` loads with 1.
        self._prepared: tuple[int, Scales] = (1, ())
        self._closed = False
        self._language: LanguageModel | None = None
        if vocab_only:
            with open_gguf(self.path) as file:
                self._describe(file)
            return
        self._language = _load(
            self.path,
            {"device": device, "devices": devices, "placement": placement},
            exact,
            progress_callback,
        )
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
        """The engine's model, which computes.

        Raises
        ------
        BackendError
            The model was closed.
        ModelError
            It was loaded with ``vocab_only``.
        """
        self.require_open()
        if self._language is None:
            raise ModelError(f"{self.path}: was loaded with vocab_only, so it cannot compute")
        return self._language

    def require_open(self) -> None:
        """Raise if the model was closed.

        Raises
        ------
        BackendError
            It was closed.
        """
        if self._closed:
            raise BackendError(f"{self.path}: the model was closed; load it again")

    # Metadata of the file.

    def _uint(self, key: str) -> int:
        return self.config.uint(key, 0)

    def n_ctx_train(self) -> int:
        """Return the positions that the model was trained on; 0 if the file has no number."""
        return self._uint("context_length")

    def n_embd(self) -> int:
        """Return the width of a hidden state."""
        return self._uint("embedding_length")

    def n_layer(self) -> int:
        """Return the number of layers."""
        return self._uint("block_count")

    def _first_layer_uint(self, key: str) -> int:
        # Some files have a list with a number per layer; llama.h's functions have one.
        if key not in self.config:
            return 0
        return self.config.uint_per_layer(key, self.n_layer())[0]

    def n_head(self) -> int:
        """Return the attention heads of the first layer."""
        return self._first_layer_uint("attention.head_count")

    def n_head_kv(self) -> int:
        """Return the key and value heads of the first layer."""
        return self._first_layer_uint("attention.head_count_kv") or self.n_head()

    def n_swa(self) -> int:
        """Return the positions of the sliding window; 0 for none."""
        return self._uint("attention.sliding_window")

    def rope_freq_scale_train(self) -> float:
        """Return the factor of RoPE frequencies that the file gives; 1.0 for none."""
        # The file has the factor of the context length, which is the inverse.
        factor = self.config.float("rope.scaling.factor", 1.0)
        return 1.0 / factor if factor else 1.0

    def desc(self) -> str:
        """Return architecture and number of parameters, such as ``llama 1.10 B``."""
        count = self.n_params()
        unit, per = next(
            ((u, p) for u, p in (("B", 1e9), ("M", 1e6), ("K", 1e3)) if count >= p), ("", 1)
        )
        return f"{self.config.architecture} {count / per:.2f} {unit}".rstrip()

    def size(self) -> int:
        """Return the bytes of the weights in the file."""
        return sum(info.nbytes for info in self._tensors.values())

    def n_params(self) -> int:
        """Return the number of weights."""
        return sum(int(np.prod(info.shape)) for info in self._tensors.values())

    def has_encoder(self) -> bool:
        """Return whether the model has an encoder, with a decoder or without."""
        model = self.language.model
        return model.prompt_encoder() is not None or not model.has_logits

    def has_decoder(self) -> bool:
        """Return whether the model computes logits of next tokens."""
        # From the class, so that it is known with `vocab_only` too.
        return model_class(self.config).logits is not Architecture.logits

    def decoder_start_token(self) -> int:
        """Return the token that answers of encoder-decoder models begin with; else -1."""
        encoder = self.language.model.prompt_encoder()
        return -1 if encoder is None else encoder.start

    def is_recurrent(self) -> bool:
        """Return whether some layer has a recurrent state in place of keys and values."""
        return f"{self.config.architecture}.ssm.state_size" in self._metadata or (
            f"{self.config.architecture}.wkv.head_size" in self._metadata
        )

    def metadata(self, *, arrays: bool = True) -> dict[str, str]:
        """Return keys and values as text; arrays as their length, or left out."""
        return {
            key: _text(value)
            for key, value in self._metadata.items()
            if arrays or not isinstance(value, list | np.ndarray)
        }

    def meta_val_str(self, key: str) -> str | None:
        """Return the value of a key as text; None if the file has no such key."""
        value = self._metadata.get(key)
        return None if value is None else _text(value)

    def meta_count(self) -> int:
        """Return the number of keys in the file."""
        return len(self._metadata)

    def meta_key_by_index(self, index: int) -> str:
        """Return a key by its place in the file."""
        return list(self._metadata)[index]

    def meta_val_str_by_index(self, index: int) -> str:
        """Return the value of a key by its place in the file, as text."""
        return _text(self._metadata[self.meta_key_by_index(index)])

    def chat_template(self, name: str | None = None) -> str | None:
        """Return the chat template, or the one with a name; None if the file has none."""
        key = "tokenizer.chat_template" + (f".{name}" if name else "")
        value = self._metadata.get(key)
        return value if isinstance(value, str) else None

    # For contexts.

    def alone(self, act: Callable[[], Result]) -> Result:
        """Run a function while no other thread computes with the model."""

        def run() -> Result:
            # Checked with the lock held: another thread may close the model in the meantime.
            self.require_open()
            return act()

        return self._turns.take(run)

    def keep(self, context: Closable) -> None:
        """Register a context, which is closed before the model."""
        self._contexts.add(context)

    def prepare(self, n_ctx: int, adapters: Scales) -> None:
        """Set the model to the length and the adapters of the context that computes next."""
        before, now = self._prepared, (n_ctx, tuple(adapters))
        if before == now:
            return
        if before[0] != n_ctx:
            self.language.model.fit_context(n_ctx)
        if before[1] != now[1]:
            self.language.adapters.set_loras(scaled_files("adapters", list(adapters)))
        self._prepared = now

    def close(self) -> None:
        """Release contexts and device after running calls. Calling it again does nothing."""
        self._turns.take(self._close)

    def _close(self) -> None:
        for context in list(self._contexts):
            context.close()
        self._closed = True
        if self._language is not None:
            self._language.close()


def _load(
    path: Path,
    where: Mapping[str, Any],
    exact: bool,
    callback: ProgressCallback | None,
) -> LanguageModel:
    """Load a model, with the smallest cache: each `Context` has its own.

    Parameters
    ----------
    where : mapping
        Arguments of `load` for devices.
    """
    ended = False

    def progress(fraction: float) -> None:
        nonlocal ended
        # None does not end it: a callback may return nothing.
        if callback is not None and callback(fraction) is False:
            ended = True

    return load(path, num_ctx=1, exact=exact, progress=progress, cancelled=lambda: ended, **where)


def _text(value: object) -> str:
    # llama.cpp's spelling, in lower case.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | np.ndarray):
        return f"[{len(cast('Sequence[object]', value))} values]"
    return str(value)
