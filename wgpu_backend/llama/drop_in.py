"""Llama: llama-cpp-python's class, so that scripts run after one changed import."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import BackendError
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.llama.chain import DEFAULT_SEED
from wgpu_backend.llama.chat import OF_THE_FILE, ChatCompletions
from wgpu_backend.llama.context import Context
from wgpu_backend.llama.drop_in_embeddings import Embeddings
from wgpu_backend.llama.drop_in_options import cache_type, require_known
from wgpu_backend.llama.drop_in_state import LlamaState
from wgpu_backend.llama.model import Model
from wgpu_backend.llama.processors import Ids

Scores = NDArray[np.single]
_log = logging.getLogger("wgpu_backend.llama")


class Llama(ChatCompletions, Embeddings):
    """A model with a context, by llama-cpp-python's names.

    Belongs to one thread at a time: calls of several take turns step by step, and would mix their
    texts. Close it, or use it as a context manager; one that is forgotten closes itself.

    Parameters
    ----------
    model_path : str
        GGUF file, or folder.
    vocab_only : bool
        Read tokens alone.
    seed : int or None
        Of random numbers; None, 0, 0xFFFFFFFF, or one below 0, draws one.
    n_ctx : int
        Positions of the context; 0 for what the model was trained on.
    n_batch : int
        Tokens that are computed together at most.
    pooling_type : int
        How embeddings become one: ``LLAMA_POOLING_TYPE_…``; -1 for what the file says, else none:
        then each token has a vector.
    logits_all : bool
        Keep the logits of every token, for `logprobs`.
    embedding : bool
        Allow `embed` and `create_embedding`.
    last_n_tokens_size : int
        How many tokens back penalties look.
    lora_path : str or None
        A LoRA adapter, with `lora_scale`.
    chat_format : str or None
        ``chatml``, ``llama-2`` and so on, see ``docs/llama.md``; None for the file's own template.
    chat_handler : callable or None
        In place of a format; called as `create_chat_completion` is, with ``llama=``.
    type_k, type_v : int or None
        Type of the cache by ggml's number, the same for both.
    verbose : bool
        Taken, and of no consequence: messages go to the logger ``wgpu_backend``.
    device : str, int, DeviceInfo or None
        As `wgpu_backend.load` takes it: the whole model runs there, whatever `n_gpu_layers` says.
    **others : object
        Arguments of llama-cpp-python that change nothing here, such as `n_gpu_layers`.

    Raises
    ------
    OptionError
        Another argument would change answers, and is not supported.
    """

    def __init__(
        self,
        model_path: str | Path,
        *,
        vocab_only: bool = False,
        seed: int | None = DEFAULT_SEED,
        n_ctx: int = 512,
        n_batch: int = 512,
        pooling_type: int = -1,
        logits_all: bool = False,
        embedding: bool = False,
        last_n_tokens_size: int = 64,
        lora_path: str | None = None,
        lora_scale: float = 1.0,
        chat_format: str | None = None,
        chat_handler: Callable[..., Any] | None = None,
        type_k: int | None = None,
        type_v: int | None = None,
        verbose: bool = True,
        device: str | int | DeviceInfo | None = None,
        **others: object,
    ) -> None:
        require_known(others)
        kv_dtype = cache_type(type_k, type_v)
        self.model_path, self.verbose = str(model_path), verbose
        self.last_n_tokens_size, self.n_batch = last_n_tokens_size, n_batch
        self.lora_path, self.lora_scale = lora_path, lora_scale
        self.chat_format, self.chat_handler = chat_format, chat_handler
        self.cache: Any = None
        self._seed, self._logits_all, self._embedding = seed or DEFAULT_SEED, logits_all, embedding
        self._model = Model(Path(model_path), device=device, vocab_only=vocab_only)
        self._finaliser = weakref.finalize(self, self._model.close)
        if chat_format is None and chat_handler is None:
            self.chat_format = self._guessed_format()
        self._context: Context | None = None
        if not vocab_only:
            self._open(n_ctx, kv_dtype, pooling_type)
            self.n_batch = min(n_batch, self.n_ctx())
        self.n_tokens, self._requires_eval = 0, True
        self.input_ids: Ids = np.zeros(self.n_ctx() if self._context else 0, np.intc)
        self._rows: list[Scores | None] = []

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str,
        additional_files: Sequence[str] | None = None,
        local_dir: str | PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | PathLike[str] | None = None,
        **options: Any,  # noqa: ANN401  those of the class
    ) -> Llama:
        """Load a model of Hugging Face's Hub; files that were brought before are not again.

        Parameters
        ----------
        repo_id : str
            ``OWNER/REPO``.
        filename : str
            Name of a GGUF file there, or a pattern that fits one: ``*Q4_K_M.gguf``. Of a split file
            all parts are brought.
        additional_files : sequence of str or None
            Patterns of files to bring besides.
        local_dir, cache_dir : path-like or None
            Where to put files; None for the cache of huggingface_hub.
        local_dir_use_symlinks : bool or str
            Taken, and of no consequence: huggingface_hub makes no links in `local_dir` any more.
        **options : object
            Arguments of `Llama`.

        Raises
        ------
        OptionError
            A pattern fits no file, or several.
        ModelError
            The Hub has no such repository, or cannot be reached.
        """
        from wgpu_backend.llama.pretrained import downloaded

        path = downloaded(repo_id, filename, additional_files or (), local_dir, cache_dir)
        return cls(model_path=str(path), **options)

    def _open(self, n_ctx: int, kv_dtype: str, pooling: int) -> None:
        try:
            self._context = Context(
                self._model, n_ctx=n_ctx, n_batch=1 << 24, kv_dtype=kv_dtype, pooling_type=pooling
            )
            if self.lora_path is not None:
                self._context.set_adapter_lora(self.lora_path, self.lora_scale)
        except BaseException:
            self.close()
            raise

    def _guessed_format(self) -> str:
        if self._model.chat_template() is not None:
            return OF_THE_FILE
        _log.info("%s has no chat template, taking llama-2; see chat_format", self.model_path)
        return "llama-2"

    def __enter__(self) -> Llama:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ctx(self) -> Context:
        """The context: llama.h's functions are its methods.

        Raises
        ------
        BackendError
            The model was closed, or has tokens alone.
        """
        self._model.require_open()
        if self._context is None:
            raise BackendError(f"{self.model_path}: was loaded with vocab_only")
        return self._context

    @property
    def model(self) -> Model:
        """The model: llama.h's functions are its methods."""
        return self._model

    @property
    def _input_ids(self) -> Ids:
        """Tokens that the context has, for programs that reach for llama-cpp-python's own."""
        return self.input_ids[: self.n_tokens]

    @property
    def _scores(self) -> Scores:
        return self.scores

    @property
    def metadata(self) -> dict[str, str]:
        """Keys of the file, and their values as text; without arrays."""
        return self._model.metadata(arrays=False)

    # Tokens.

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Turn UTF-8 into tokens, see `Model.tokenize`."""
        return self._model.tokenize(text, add_bos, special)

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """Turn tokens into bytes, which need not be whole characters.

        A space that begins the text goes where BOS is in front of it. What `prev_tokens` are makes
        no difference.
        """
        text = b"".join(self._model.token_to_piece(token, special) for token in tokens)
        begins = len(tokens) > 0 and tokens[0] == self.token_bos()
        return text.removeprefix(b" ") if begins else text

    def n_ctx(self) -> int:
        """Positions of the context."""
        return self.ctx.n_ctx()

    def n_embd(self) -> int:
        """Width of a state."""
        return self._model.n_embd()

    def n_vocab(self) -> int:
        """Tokens, and logits there are each time."""
        return self._model.n_vocab()

    def token_eos(self) -> int:
        """Token that ends a text; -1 for none."""
        return self._model.token_eos()

    def token_bos(self) -> int:
        """Token that begins a text; -1 for none."""
        return self._model.token_bos()

    def token_nl(self) -> int:
        """Token of a line break."""
        return self._model.token_nl()

    # State.

    def set_cache(self, cache: Any) -> None:  # noqa: ANN401  whatever has a mapping's methods
        """Keep states of completed prompts there, and go on from them."""
        self.cache = cache

    def save_state(self) -> LlamaState:
        """What the context has, to go on from later."""
        return LlamaState(
            input_ids=self.input_ids.copy(),
            scores=self.scores if self._logits_all else np.zeros((0, self.n_vocab()), np.single),
            n_tokens=self.n_tokens,
            llama_state=(data := self.ctx.state_seq_get_data(0)),
            llama_state_size=len(data),
            seed=self._seed,
        )

    def load_state(self, state: LlamaState) -> None:
        """Go on from a state. Its logits come with the next token.

        Raises
        ------
        StateError
            It is damaged, or of another model; nothing has changed.
        """
        self.ctx.state_seq_set_data(state.llama_state, 0)
        self.input_ids[:] = 0
        count = min(len(state.input_ids), len(self.input_ids))
        self.input_ids[:count] = state.input_ids[:count]
        self.n_tokens, self._seed, self._requires_eval = state.n_tokens, state.seed, True
        kept: list[Scores | None] = list(state.scores)
        self._rows = kept or [None] * state.n_tokens

    def close(self) -> None:
        """Release the device; again is harmless."""
        self._finaliser()
