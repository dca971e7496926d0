"""llama.cpp's shape of an API, for those who build on it.

::

    from wgpu_backend.llama import Batch, Context, Model, SamplerChain

    with Model("model.gguf") as model, Context(model, n_ctx=2048) as context:
        chain = SamplerChain().add_top_k(40).add_temp(0.8).add_dist(seed=7)
        context.decode(Batch.get_one(model.tokenize(b"Once upon a time")))
        token = chain.sample(context)

or, as llama-cpp-python has it::

    from wgpu_backend.llama import Llama

    llm = Llama("model.gguf", n_ctx=2048)
    print(llm("Once upon a time", max_tokens=32, stop=["."])["choices"][0]["text"])

Models and contexts may be used from several threads: calls take turns, and results are those of the
last call. A batch and a chain belong to one thread. All close twice harmlessly, and refuse to be
used after that. See ``docs/llama.md`` for what there is of llama.h.
"""

from __future__ import annotations

from wgpu_backend.llama.batch import Batch
from wgpu_backend.llama.chain import SamplerChain
from wgpu_backend.llama.context import Aborted, Context
from wgpu_backend.llama.drop_in import Llama
from wgpu_backend.llama.drop_in_state import LlamaRAMCache, LlamaState
from wgpu_backend.llama.grammar import LlamaGrammar
from wgpu_backend.llama.memory import Memory
from wgpu_backend.llama.model import Model
from wgpu_backend.llama.perf import Perf, log_set
from wgpu_backend.llama.processors import (
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteriaList,
)
from wgpu_backend.llama.samplers import DEFAULT_SEED as LLAMA_DEFAULT_SEED
from wgpu_backend.llama.states import StateError

LlamaCache = LlamaRAMCache

__all__ = [
    "LLAMA_DEFAULT_SEED",
    "Aborted",
    "Batch",
    "Context",
    "Llama",
    "LlamaCache",
    "LlamaGrammar",
    "LlamaRAMCache",
    "LlamaState",
    "LogitsProcessorList",
    "Memory",
    "MinTokensLogitsProcessor",
    "Model",
    "Perf",
    "SamplerChain",
    "StateError",
    "StoppingCriteriaList",
    "log_set",
]
