"""The class `Llama` of llama-cpp-python, whose programs run here with one changed import."""

from __future__ import annotations

import logging
import secrets
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from os import PathLike
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wgpu_backend.dtypes import named
from wgpu_backend.engine.arguments import conversation
from wgpu_backend.engine.arguments import stops as stop_texts
from wgpu_backend.engine.placing import DeviceChoice, Placed, place_model
from wgpu_backend.engine.pooling import unit
from wgpu_backend.engine.stop_texts import StopTexts
from wgpu_backend.errors import BackendError, ContextFull, OptionError
from wgpu_backend.files.huggingface.folder import open_model_file
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.llama.arguments import (
    Ids,
    Processors,
    Scores,
    StoppingCriteria,
    choose_cache_type,
    combine_criteria,
    combine_processors,
    make_placement,
    require_known_arguments,
    require_neutral_sampling,
    require_no_function_call,
)
from wgpu_backend.llama.batch import Batch
from wgpu_backend.llama.cache import LlamaState, count_common_prefix
from wgpu_backend.llama.chat_formats import FILE_FORMAT, make_prompter
from wgpu_backend.llama.constants import LLAMA_POOLING_TYPE_NONE
from wgpu_backend.llama.context import Context
from wgpu_backend.llama.grammar import make_response_grammar
from wgpu_backend.llama.model import Model
from wgpu_backend.llama.responses import (
    CompletionRequest,
    Json,
    Logprobs,
    log_softmax,
    make_chat_chunks,
    make_chat_completion,
    make_completion,
)
from wgpu_backend.llama.samplers import DEFAULT_SEED, SamplerChain
from wgpu_backend.llama.states import StateError
from wgpu_backend.ml.placement import Placement

# Arguments of a chat that templates read in addition to messages and tools.
_TEMPLATE_ARGUMENTS = ("functions", "function_call", "tool_choice")
_log = logging.getLogger("wgpu_backend.llama")


class NotForEmbeddings(OptionError, RuntimeError):
    """An error: the model was made without ``embedding=True``.

    It is also a RuntimeError, which llama-cpp-python raises there.
    """


def _place(path: Path, choice: DeviceChoice, n_ctx: int, kv_dtype: str) -> Placed:
    """Plan a model's devices with room for its context, which is made after loading."""
    with open_model_file(path) as file:
        positions = n_ctx or file.config.uint("context_length", 0) or None
    return place_model(path, choice, positions, kv_dtype=named(kv_dtype))


class Llama:
    """A model with a context, under llama-cpp-python's names.

    Belongs to one thread at a time: calls from several threads alternate step by step and would mix
    their texts. Close it, or use it as a context manager; an unused one closes when it is
    collected.

    Parameters
    ----------
    model_path : str
        GGUF file, or folder.
    vocab_only : bool
        Read only the tokenizer and the metadata.
    seed : int or None
        Seed of random numbers; None, 0, 0xFFFFFFFF or a negative number draws one.
    n_ctx : int
        Positions of the context; 0 for as many as the model was trained on.
    n_batch : int
        Most tokens that are computed together.
    pooling_type : int
        How token embeddings become one: ``LLAMA_POOLING_TYPE_…``. -1 takes the file's pooling, or
        none, which gives one vector per token.
    logits_all : bool
        Keep the logits of every token, as `logprobs` requires.
    embedding : bool
        Allow `embed` and `create_embedding`.
    last_n_tokens_size : int
        Number of last tokens that penalties count.
    lora_path : str or None
        A LoRA adapter, applied with `lora_scale`.
    chat_format : str or None
        ``chatml``, ``llama-2`` and so on, see ``docs/llama.md``; None for the file's own template.
    chat_handler : callable or None
        Function that replaces formats. It is called with the arguments of `create_chat_completion`
        and ``llama=``.
    type_k, type_v : int or None
        Element type of the cache as a ``GGML_TYPE_…`` number, the same for both.
    verbose : bool
        Accepted and ignored: messages go to the logger ``wgpu_backend``.
    device, devices : str, int, DeviceInfo or None, and a sequence of these or None
        As for `wgpu_backend.load`.
    n_gpu_layers : int
        Last layers in the memory of GPUs, with the output head as the last layer. -1 for as many as
        fit; a number above the model's means all.
    split_mode : int
        1 to place layers on all devices, 0 to use `main_gpu` only.
    main_gpu : int
        Position of the device to use with `split_mode` 0.
    tensor_split : sequence of float or None
        Shares of the layers by device.
    offload_kqv : bool
        False to keep keys and values in the host's memory, where GPUs read them.
    op_offload : bool or None
        False to have the CPU compute the layers that are not in the memory of GPUs.
    **others : object
        Arguments of llama-cpp-python that change nothing here, such as `n_threads`.

    Attributes
    ----------
    n_tokens : int
        Tokens in the context.
    input_ids : (n_ctx,), intc
        These tokens, followed by unused entries.

    Raises
    ------
    OptionError
        Another argument would change answers and is not supported.
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
        devices: Sequence[str | int | DeviceInfo] | None = None,
        n_gpu_layers: int = -1,
        split_mode: int = 1,
        main_gpu: int = 0,
        tensor_split: Sequence[float] | None = None,
        offload_kqv: bool = True,
        op_offload: bool | None = None,
        **others: object,
    ) -> None:
        # Before the model is loaded, which takes long.
        require_known_arguments(others)
        options = make_placement(
            n_gpu_layers,
            split_mode,
            main_gpu,
            tensor_split,
            offload_kqv=offload_kqv,
            op_offload=op_offload,
        )
        kv_dtype = choose_cache_type(type_k, type_v)
        placement: Placement | None = None
        if not vocab_only and (options is not None or devices is not None):
            choice = DeviceChoice.check(device, devices, options)
            placed = _place(Path(model_path), choice, n_ctx, kv_dtype)
            device, devices, placement = None, placed.devices, placed.placement
        self.model_path, self.verbose = str(model_path), verbose
        self.last_n_tokens_size, self.n_batch = last_n_tokens_size, n_batch
        self.lora_path, self.lora_scale = lora_path, lora_scale
        self.chat_format, self.chat_handler = chat_format, chat_handler
        self.cache: Any = None
        self._seed, self._logits_all, self._embedding = seed or DEFAULT_SEED, logits_all, embedding
        self._model = Model(
            Path(model_path),
            device=device,
            devices=devices,
            placement=placement,
            vocab_only=vocab_only,
        )
        # The finaliser holds the model's method and not this object, so that an unused one is
        # collected and then releases the device.
        self._finaliser = weakref.finalize(self, self._model.close)
        if chat_format is None and chat_handler is None:
            self.chat_format = self._guess_format()
        self._context: Context | None = None
        if not vocab_only:
            self._open(n_ctx, kv_dtype, pooling_type)
            self.n_batch = min(n_batch, self.n_ctx())
        self.n_tokens = 0
        # True while the context has no logits to sample from: at first, and after load_state().
        self._requires_eval = True
        self.input_ids: Ids = np.zeros(self.n_ctx() if self._context else 0, np.intc)
        # Logits of each token; None where they were not kept.
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
        """Load a model from Hugging Face's Hub; files in the cache are not downloaded again.

        Parameters
        ----------
        repo_id : str
            ``OWNER/REPO``.
        filename : str
            Name of a GGUF file there, or a pattern that matches one: ``*Q4_K_M.gguf``. All parts of
            a split file are downloaded.
        additional_files : sequence of str or None
            Patterns of further files to download.
        local_dir, cache_dir : path-like or None
            Where to put files; None for the cache of huggingface_hub.
        local_dir_use_symlinks : bool or str
            Accepted and ignored: huggingface_hub no longer makes links in `local_dir`.
        **options : object
            Arguments of `Llama`.

        Raises
        ------
        OptionError
            A pattern matches no file, or several.
        ModelError
            The Hub has no such repository, or cannot be reached.
        """
        # Only this method imports huggingface_hub.
        from wgpu_backend.llama.pretrained import download

        path = download(repo_id, filename, additional_files or (), local_dir, cache_dir)
        return cls(model_path=str(path), **options)

    def _open(self, n_ctx: int, kv_dtype: str, pooling: int) -> None:
        try:
            # n_batch is the context's limit: `eval` cuts by self.n_batch, which may change later.
            self._context = Context(
                self._model, n_ctx=n_ctx, n_batch=1 << 24, kv_dtype=kv_dtype, pooling_type=pooling
            )
            if self.lora_path is not None:
                self._context.set_adapter_lora(self.lora_path, self.lora_scale)
        except BaseException:
            # The caller gets no object to close.
            self.close()
            raise

    def _guess_format(self) -> str:
        if self._model.chat_template() is not None:
            return FILE_FORMAT
        _log.info("%s has no chat template, taking llama-2; see chat_format", self.model_path)
        return "llama-2"

    def close(self) -> None:
        """Release the device. Calling it again does nothing."""
        self._finaliser()

    def __enter__(self) -> Llama:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The model, its tokens and what the context has.

    @property
    def ctx(self) -> Context:
        """The context, with llama.h's functions as methods.

        Raises
        ------
        BackendError
            The model was closed, or was loaded with ``vocab_only``.
        """
        self._model.require_open()
        if self._context is None:
            raise BackendError(f"{self.model_path}: was loaded with vocab_only; load it without")
        return self._context

    @property
    def model(self) -> Model:
        """The model, with llama.h's functions as methods."""
        return self._model

    @property
    def metadata(self) -> dict[str, str]:
        """Keys of the file and their values as text, without arrays."""
        return self._model.metadata(arrays=False)

    @property
    def eval_tokens(self) -> list[int]:
        """Tokens in the context."""
        return self.input_ids[: self.n_tokens].tolist()

    @property
    def eval_logits(self) -> list[list[float]]:
        """Logits that were kept: of all tokens with ``logits_all``, else of the last one."""
        return [row.tolist() for row in self._rows[: self.n_tokens] if row is not None]

    @property
    def scores(self) -> Scores:
        """Logits (tokens, vocabulary); zeros where they were not kept."""
        zeros = np.zeros(self.n_vocab(), np.single)
        rows = [zeros if row is None else row for row in self._rows[: self.n_tokens]]
        return np.stack(rows) if rows else np.zeros((0, self.n_vocab()), np.single)

    # Private names of llama-cpp-python that programs use nevertheless.

    @property
    def _input_ids(self) -> Ids:
        return self.input_ids[: self.n_tokens]

    @property
    def _scores(self) -> Scores:
        return self.scores

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Turn UTF-8 into tokens, see `Model.tokenize`."""
        return self._model.tokenize(text, add_bos, special)

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """Turn tokens into bytes, which may end within a character.

        A leading space is dropped only after BOS. `prev_tokens` is ignored.
        """
        text = b"".join(self._model.token_to_piece(token, special) for token in tokens)
        begins = len(tokens) > 0 and tokens[0] == self.token_bos()
        return text.removeprefix(b" ") if begins else text

    def n_ctx(self) -> int:
        """Return the positions of the context."""
        return self.ctx.n_ctx()

    def n_embd(self) -> int:
        """Return the width of a hidden state."""
        return self._model.n_embd()

    def n_vocab(self) -> int:
        """Return the number of tokens, which is the number of logits."""
        return self._model.n_vocab()

    def token_eos(self) -> int:
        """Return the token that ends a text; -1 for none."""
        return self._model.token_eos()

    def token_bos(self) -> int:
        """Return the token that begins a text; -1 for none."""
        return self._model.token_bos()

    def token_nl(self) -> int:
        """Return the token of a line break."""
        return self._model.token_nl()

    # Tokens, step by step: computing, choosing, generating.

    def set_seed(self, seed: int) -> None:
        """Set the seed of later generations."""
        self._seed = seed

    def reset(self) -> None:
        """Forget all tokens."""
        # The context's own sequence is cut by the next eval().
        self.n_tokens, self._requires_eval = 0, True

    def eval(self, tokens: Sequence[int]) -> None:
        """Compute tokens after those in the context.

        Raises
        ------
        ContextFull
            The context has no room for them.
        """
        context, ids = self.ctx, [int(token) for token in tokens]
        if self.n_tokens + len(ids) > self.n_ctx():
            raise ContextFull(
                f"eval: {self.n_tokens} tokens and {len(ids)} more, the context holds "
                f"{self.n_ctx()}; load the model with a larger n_ctx"
            )
        # The context has more than n_tokens after reset(), and when a prompt has another end.
        self._cut_context(self.n_tokens)
        for at in range(0, len(ids), self.n_batch):
            self._eval_part(context, ids[at : at + self.n_batch])

    def _eval_part(self, context: Context, part: Sequence[int]) -> None:
        batch = Batch(len(part))
        batch.add_sequence(part, logits_all=self._logits_all)
        context.decode(batch)
        end = self.n_tokens + len(part)
        self.input_ids[self.n_tokens : end] = part
        rows: Sequence[Scores | None] = list(context.get_logits())
        # The slice to the end also drops rows of tokens that were forgotten.
        self._rows[self.n_tokens :] = [*([None] * (len(part) - len(rows))), *rows]
        self.n_tokens, self._requires_eval = end, False

    def _cut_context(self, length: int) -> None:
        """Keep only the first `length` positions of the context."""
        if self.ctx.seq_rm(0, length, -1):
            return
        # Recurrent states and sliding windows do not go back to every position: compute the
        # tokens again.
        self.ctx.clear()
        for at in range(0, length, self.n_batch):
            part = self.input_ids[at : min(at + self.n_batch, length)].tolist()
            self.ctx.decode(Batch.get_one(part))

    def sample(
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_eta: float = 0.1,
        mirostat_tau: float = 5.0,
        penalize_nl: bool = True,
        logits_processor: Processors | None = None,
        grammar: object = None,
        idx: int | None = None,
        *,
        chain: SamplerChain | None = None,
    ) -> int:
        """Choose a token by the logits of the last token, or of the one at `idx`.

        Parameters
        ----------
        chain : SamplerChain or None
            Chain to use in place of a new one. A new one has accepted no tokens, so its penalties
            change nothing.

        Raises
        ------
        BackendError
            No token was computed, or the logits at `idx` were not kept.
        """
        if self.n_tokens == 0 or self._requires_eval:
            raise BackendError("sample: no token was computed; eval() some first")
        row = self._rows[self.n_tokens - 1 if idx is None else idx]
        if row is None:
            raise BackendError(
                f"sample: logits of token {idx} were not kept; needs logits_all=True"
            )
        if chain is None:
            chain = self._make_chain(
                top_k, top_p, min_p, typical_p, temp, repeat_penalty, frequency_penalty,
                presence_penalty, tfs_z, mirostat_mode, mirostat_eta, mirostat_tau, penalize_nl,
                logits_processor, grammar,
            )  # fmt: skip
        return chain.choose(row)

    def _make_chain(
        self,
        top_k: int,
        top_p: float,
        min_p: float,
        typical_p: float,
        temp: float,
        repeat_penalty: float,
        frequency_penalty: float,
        presence_penalty: float,
        tfs_z: float,
        mirostat_mode: int,
        mirostat_eta: float,
        mirostat_tau: float,
        penalize_nl: bool,
        logits_processor: Processors | None,
        grammar: object,
    ) -> SamplerChain:
        """Return samplers in llama-cpp-python's order."""
        require_neutral_sampling(tfs_z, penalize_nl)
        chain, processor = SamplerChain(), combine_processors(logits_processor)
        if processor is not None:
            chain.add_custom(lambda logits: processor(self.input_ids[: self.n_tokens], logits))
        chain.add_penalties(
            self.last_n_tokens_size, repeat_penalty, frequency_penalty, presence_penalty
        )
        if grammar is not None:
            # Before samplers that drop tokens: they might drop all that the grammar allows.
            chain.add_grammar(self.model, grammar)
        # A negative temperature is llama-cpp-python's way to draw from all tokens.
        if temp < 0:
            return chain.add_dist(self._seed)
        if temp == 0:
            return chain.add_greedy()
        if mirostat_mode == 1:
            return chain.add_mirostat(self.n_vocab(), self._seed, mirostat_tau, mirostat_eta)
        if mirostat_mode == 2:
            return chain.add_mirostat_v2(self._seed, mirostat_tau, mirostat_eta)
        chain.add_top_k(top_k).add_typical(typical_p).add_top_p(top_p).add_min_p(min_p)
        return chain.add_temp(temp).add_dist(self._seed)

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: Processors | None = None,
        stopping_criteria: StoppingCriteria | Sequence[StoppingCriteria] | None = None,
        grammar: object = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Yield the tokens after a prompt, without end.

        Tokens passed to `send` are computed after the token that was yielded. A prefix of the
        prompt that is in the context already is not computed again. Penalties count only tokens
        that were chosen, not the prompt's or those that were sent.
        """
        chain = self._make_chain(
            top_k, top_p, min_p, typical_p, temp, repeat_penalty, frequency_penalty,
            presence_penalty, tfs_z, mirostat_mode, mirostat_eta, mirostat_tau, penalize_nl,
            logits_processor, grammar,
        )  # fmt: skip
        criterion = combine_criteria(stopping_criteria)
        prompt = [int(token) for token in tokens]
        self.eval(self._skip_known(prompt) if reset else prompt)
        while True:
            token = self.sample(chain=chain)
            # After the choice and before the token is yielded, as llama-cpp-python does.
            if criterion is not None and self._is_over(criterion):
                return
            further = yield token
            chain.accept(token)
            self.eval([token, *(further or ())])

    def _skip_known(self, tokens: Sequence[int]) -> Sequence[int]:
        """Go back to the common prefix with the context, and return the tokens after it."""
        common = self.longest_token_prefix(self.eval_tokens, tokens)
        # The last token of the prompt is always computed: its logits choose the first token.
        self.n_tokens = max(min(common, len(tokens) - 1), 0)
        return tokens[self.n_tokens :]

    def _is_over(self, criterion: StoppingCriteria) -> bool:
        """Return whether a criterion ends the generation, given the tokens and the last logits."""
        last = self._rows[self.n_tokens - 1]
        logits = np.zeros(0, np.single) if last is None else last
        return bool(criterion(self.input_ids[: self.n_tokens], logits))

    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
        """Return the number of first tokens that two texts have in common."""
        return count_common_prefix(a, b)

    # Embeddings.

    def pooling_type(self) -> int:
        """Return how token embeddings become one: ``LLAMA_POOLING_TYPE_…``."""
        return self.ctx.pooling_type()

    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:  # noqa: ANN401  of four shapes
        """Return the embeddings of texts.

        Parameters
        ----------
        normalize : bool
            Scale vectors to length 1.
        truncate : bool
            Cut texts to `n_batch` tokens; otherwise longer ones are an error.
        return_count : bool
            Also return the number of tokens.

        Returns
        -------
        list
            For one text a vector, or without pooling a list of one vector per token. For several
            texts a list of these.

        Raises
        ------
        OptionError
            The model was not made with ``embedding=True``.
        ContextFull
            A text is empty or too long.
        """
        if not self._embedding:
            raise NotForEmbeddings("embed: needs a model that was made with embedding=True")
        texts = [input] if isinstance(input, str) else list(input)
        limit = min(self.n_batch, self.ctx.n_ctx())
        embeddings: list[Any] = []
        total = 0
        self.ctx.set_embeddings(True)
        try:
            for text in texts:
                tokens = _cut_tokens(self.tokenize(text.encode()), limit, truncate=truncate)
                total += len(tokens)
                embeddings.append(self._embed_tokens(tokens, normalize=normalize))
        finally:
            # The context computed other texts, and generations need logits again.
            self.ctx.set_embeddings(False)
            self.ctx.clear()
            self.reset()
        result = embeddings[0] if isinstance(input, str) else embeddings
        return (result, total) if return_count else result

    def _embed_tokens(self, tokens: Sequence[int], *, normalize: bool) -> list[Any]:
        context = self.ctx
        context.clear()
        context.decode(Batch.get_one(tokens))
        if context.pooling_type() == LLAMA_POOLING_TYPE_NONE:
            return [_to_list(row, normalize) for row in context.get_embeddings()]
        return _to_list(context.get_embeddings_seq(0), normalize)

    def create_embedding(
        self,
        input: str | Sequence[str],
        model: str | None = None,
    ) -> dict[str, Any]:
        """Return the embeddings of texts in the shape of OpenAI's API."""
        texts = [input] if isinstance(input, str) else list(input)
        vectors, count = self.embed(texts, return_count=True)
        data = [
            {"object": "embedding", "embedding": vector, "index": i}
            for i, vector in enumerate(vectors)
        ]
        return {
            "object": "list",
            "data": data,
            "model": model or self.model_path,
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }

    # Completions.

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = None,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: StoppingCriteria | Sequence[StoppingCriteria] | None = None,
        logits_processor: Processors | None = None,
        grammar: object = None,
        logit_bias: Mapping[int, float] | None = None,
    ) -> Any:  # noqa: ANN401  a completion, or an iterator of its chunks
        """Continue a text.

        Parameters
        ----------
        suffix : str or None
            Text after the gap to fill, for models with fill-in-the-middle tokens.
        max_tokens : int or None
            Most tokens; None or less than 1 for as many as the context holds.
        logprobs : int or None
            Number of likeliest tokens to report at each position; needs ``logits_all=True``.
        echo : bool
            Return the prompt before the completion.
        stop : str or sequence of str
            Texts that end the completion.
        stream : bool
            Return an iterator of chunks.
        seed : int or None
            None for one that follows from the model's.
        stopping_criteria : callable or None
            Called with the tokens and the last logits before each token is returned; true ends the
            completion.
        temperature, top_p, min_p, typical_p, top_k, mirostat_mode, mirostat_tau, mirostat_eta
            See `SamplerChain`.
        frequency_penalty, presence_penalty, repeat_penalty, logit_bias, logits_processor
            Changes to the logits before the samplers.

        Returns
        -------
        dict, or iterator of dict
            In the shape of OpenAI's completions.

        Raises
        ------
        ContextFull
            The prompt is too long, or empty.
        OptionError
            An option is not supported, see ``docs/llama.md``.
        """
        if logprobs is not None and not self._logits_all:
            raise OptionError("logprobs: needs a model that was made with logits_all=True")
        sampling = {
            "temp": temperature, "top_p": top_p, "min_p": min_p, "typical_p": typical_p,
            "frequency_penalty": frequency_penalty, "presence_penalty": presence_penalty,
            "repeat_penalty": repeat_penalty, "top_k": top_k, "tfs_z": tfs_z,
            "mirostat_mode": mirostat_mode, "mirostat_tau": mirostat_tau,
            "mirostat_eta": mirostat_eta, "stopping_criteria": stopping_criteria,
            "logits_processor": combine_processors(logits_processor, logit_bias),
            "grammar": grammar,
        }  # fmt: skip
        tokens = self._tokenize_prompt(prompt, suffix)
        if isinstance(prompt, str):
            text = prompt
        else:
            text = self.detokenize(list(prompt)).decode("utf-8", "ignore")
        request = CompletionRequest(
            tokens, text, self._limit_tokens(len(tokens), max_tokens), stop_texts(stop),
            logprobs, sampling, model or self.model_path, echo,
        )  # fmt: skip
        # Not in the generator, which runs only when the caller reads the first chunk.
        self._choose_seed(seed)
        self._load_cached(tokens)
        chunks = self._generate_chunks(request)
        return chunks if stream else make_completion(request, chunks)

    __call__ = create_completion

    def _tokenize_prompt(self, prompt: str | Sequence[int], suffix: str | None) -> list[int]:
        model = self.model
        if suffix is not None:
            tokens = self._tokenize_gap(prompt, suffix)
        elif isinstance(prompt, str):
            tokens = model.tokenize(prompt, True, True)
        else:
            tokens = [int(token) for token in prompt]
        # An empty prompt generates from BOS.
        if not tokens and model.token_bos() >= 0:
            tokens = [model.token_bos()]
        return tokens

    def _tokenize_gap(self, prompt: str | Sequence[int], suffix: str) -> list[int]:
        """Return the tokens around a gap in the order of the models' training."""
        model = self.model
        marks = [model.token_prefix(), model.token_suffix(), model.token_middle()]
        if min(marks) < 0:
            raise OptionError("suffix: the model has no fill-in-the-middle tokens; leave it out")
        before = model.tokenize(prompt, False) if isinstance(prompt, str) else list(prompt)
        bos = [model.token_bos()] if model.add_bos_token() else []
        # The suffix continues a text: some tokenizers would add a space before it.
        after = model.tokenizer.encode_further(suffix)
        return [*bos, marks[0], *before, marks[1], *after, marks[2]]

    def _limit_tokens(self, prompt: int, max_tokens: int | None) -> int:
        """Return how many tokens may follow a prompt of `prompt` tokens."""
        room = self.n_ctx()
        if not 0 < prompt < room:
            # The first words are llama-cpp-python's.
            raise ContextFull(
                f"Requested tokens ({prompt}) exceed context window of {room}, or there are none; "
                "shorten the prompt or make the model with a larger n_ctx"
            )
        left = room - prompt
        return left if max_tokens is None or max_tokens <= 0 else min(max_tokens, left)

    def _choose_seed(self, seed: int | None) -> None:
        """Set the seed of a completion."""
        if seed is not None:
            self._seed = seed
        elif self._seed in (0, DEFAULT_SEED) or self._seed < 0:
            # An open seed. llama-cpp-python takes 0 for one too.
            self._seed = secrets.randbits(31)
        else:
            # Each call gets another seed, and a series of calls can be repeated.
            self._seed = Random(self._seed).randint(0, 2**31)

    def _load_cached(self, tokens: Sequence[int]) -> None:
        """Load the cached state with a prompt's longest prefix, if that exceeds the context's."""
        if self.cache is None:
            return
        try:
            state = self.cache[tokens]
        except KeyError:
            return
        cached = state.input_ids[: state.n_tokens].tolist()
        present = self.longest_token_prefix(self.eval_tokens, tokens)
        if self.longest_token_prefix(cached, tokens) > present:
            seed = self._seed
            # A disk cache may have states of another model.
            with suppress(StateError):
                self.load_state(state)
            # load_state() also sets the seed, which is this call's.
            self._seed = seed

    def _generate_tokens(self, request: CompletionRequest) -> Generator[int]:
        """Yield tokens up to the end, and note why it ended."""
        stats = request.stats
        with closing(self.generate(request.prompt, **request.sampling)) as tokens:
            for token in tokens:
                if self.model.is_eog(token):
                    stats.done_reason = "stop"
                    return
                request.generated.append(token)
                yield token
                if len(request.generated) >= request.limit:
                    stats.done_reason = "length"
                    return
        # generate() ends by itself only by a stopping criterion.
        stats.done_reason = "stop"

    def _generate_texts(self, request: CompletionRequest) -> Generator[str]:
        """Yield the text, held back while it may begin a stop text."""
        texts, detokenizer = StopTexts(request.stop), self.model.tokenizer.stream()
        with closing(self._generate_tokens(request)) as tokens:
            for token in tokens:
                ready = texts.push(detokenizer.push(token))
                if ready:
                    yield ready
                if texts.found is not None:
                    request.stats.done_reason = "stop"
                    return
        # A character that is cut at the end is left out, as in llama-cpp-python.
        if rest := texts.flush():
            yield rest

    def _generate_chunks(self, request: CompletionRequest) -> Generator[Json]:
        logprobs = Logprobs(self.model, request)
        echoed = not request.echo
        for text in self._generate_texts(request):
            # Logits of the prompt are there only when the first token is.
            if not echoed:
                yield request.make_chunk(request.prompt_text, logprobs.describe_prompt(self._rows))
                echoed = True
            yield request.make_chunk(text, logprobs.describe_new(self._rows))
        if not echoed:
            yield request.make_chunk(request.prompt_text, logprobs.describe_prompt(self._rows))
        yield request.make_chunk("", None, request.stats.done_reason)
        if self.cache is not None:
            self.cache[self.eval_tokens] = self.save_state()

    @staticmethod
    def logits_to_logprobs(logits: ArrayLike, axis: int = -1) -> NDArray[np.single]:
        """Return the logarithms of the probabilities of logits."""
        return log_softmax(np.asarray(logits, np.single), axis)

    # Chat.

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        functions: Sequence[Mapping[str, Any]] | None = None,
        function_call: object = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: object = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: Processors | None = None,
        grammar: object = None,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
    ) -> Any:  # noqa: ANN401  a completion, or an iterator of its chunks
        """Answer a conversation.

        Control tokens come from the template alone; spelled out in a message they are text.

        Parameters
        ----------
        messages : sequence of mappings
            Each with a ``role`` and a ``content``.
        functions, tools : sequence of mappings or None
            For the model's template. The answer is plain text: function calls are not parsed.
        stop : str, sequence of str or None
            Texts that end the answer, in addition to those of the format.
        logprobs, top_logprobs
            Whether to report each token's log probability, and how many of the likeliest tokens.
        stream : bool
            Return an iterator of chunks.
        temperature, top_p, top_k, min_p, typical_p, seed, max_tokens, logit_bias
            And the others: see `Llama.create_completion`.

        Returns
        -------
        dict, or iterator of dict
            In the shape of OpenAI's chat completions.

        Raises
        ------
        TemplateError
            The template refuses the messages.
        OptionError
            A function call is required.
        GrammarError
            A grammar or a schema cannot be used.
        """
        options: Json = {
            "temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p,
            "typical_p": typical_p, "stream": stream, "stop": stop, "seed": seed,
            "max_tokens": max_tokens, "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty, "repeat_penalty": repeat_penalty,
            "tfs_z": tfs_z, "mirostat_mode": mirostat_mode, "mirostat_tau": mirostat_tau,
            "mirostat_eta": mirostat_eta, "model": model, "logits_processor": logits_processor,
            "grammar": grammar, "logit_bias": logit_bias,
        }  # fmt: skip
        chat: Json = {
            "functions": functions, "function_call": function_call, "tools": tools,
            "tool_choice": tool_choice, "response_format": response_format,
        }  # fmt: skip
        if self.chat_handler is not None:
            chat |= {"logprobs": logprobs, "top_logprobs": top_logprobs}
            return self.chat_handler(llama=self, messages=messages, **chat, **options)
        require_no_function_call(chat)
        if tools is None and functions is not None:
            # OpenAI's older form of tools, without a type.
            tools = [{"type": "function", "function": each} for each in functions]
        options["grammar"] = (
            grammar if grammar is not None else make_response_grammar(response_format)
        )
        prompter, ends = make_prompter(self.model, self.chat_format)
        variables = {name: chat[name] for name in _TEMPLATE_ARGUMENTS if chat[name] is not None}
        tokens = prompter.chat(conversation(messages), tools=tools, chat_template_kwargs=variables)
        options["stop"] = [*([stop] if isinstance(stop, str) else stop or ()), *ends]
        count = (top_logprobs or 0) if logprobs else None
        made = self.create_completion(tokens, logprobs=count, **options)
        return make_chat_chunks(made) if stream else make_chat_completion(made)

    def create_chat_completion_openai_v1(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Answer a conversation in classes of the package `openai`, which must be installed."""
        from openai.types.chat import ChatCompletion, ChatCompletionChunk  # pyright: ignore

        made = self.create_chat_completion(*args, **kwargs)
        if kwargs.get("stream"):
            return (cast("Any", ChatCompletionChunk)(**part) for part in made)
        return cast("Any", ChatCompletion)(**made)

    # Saved states.

    def set_cache(self, cache: Any) -> None:  # noqa: ANN401  any object with a mapping's methods
        """Set the cache that keeps states after completions, and restores them for prompts."""
        self.cache = cache

    def save_state(self) -> LlamaState:
        """Return the state of the context, for `load_state`."""
        return LlamaState(
            input_ids=self.input_ids.copy(),
            scores=self.scores if self._logits_all else np.zeros((0, self.n_vocab()), np.single),
            n_tokens=self.n_tokens,
            llama_state=(data := self.ctx.state_seq_get_data(0)),
            llama_state_size=len(data),
            seed=self._seed,
        )

    def load_state(self, state: LlamaState) -> None:
        """Restore a state. Logits are available again after the next token.

        Raises
        ------
        StateError
            It is damaged, or of another model; nothing has changed.
        """
        # First, since it may fail.
        self.ctx.state_seq_set_data(state.llama_state, 0)
        self.input_ids[:] = 0
        # The state may come from a context of another size.
        count = min(len(state.input_ids), len(self.input_ids))
        self.input_ids[:count] = state.input_ids[:count]
        self.n_tokens, self._seed, self._requires_eval = state.n_tokens, state.seed, True
        rows: list[Scores | None] = list(state.scores)
        self._rows = rows or [None] * state.n_tokens


def _cut_tokens(tokens: list[int], limit: int, *, truncate: bool) -> list[int]:
    if not tokens:
        raise ContextFull("embed: a text has 0 tokens, needs at least 1")
    if len(tokens) > limit and not truncate:
        raise ContextFull(f"embed: a text has {len(tokens)} tokens, n_batch and n_ctx hold {limit}")
    return tokens[:limit]


def _to_list(row: NDArray[np.float32], normalize: bool) -> list[float]:
    return (unit(row) if normalize else row).tolist()
