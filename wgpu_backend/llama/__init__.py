"""An API in the shape of llama.cpp and llama-cpp-python.

::

    from wgpu_backend.llama import Batch, Context, Model, SamplerChain

    with Model("model.gguf") as model, Context(model, n_ctx=2048) as context:
        chain = SamplerChain().add_top_k(40).add_temp(0.8).add_dist(seed=7)
        context.decode(Batch.get_one(model.tokenize(b"Once upon a time")))
        token = chain.sample(context)

or with llama-cpp-python's class::

    from wgpu_backend.llama import Llama

    llm = Llama("model.gguf", n_ctx=2048)
    print(llm("Once upon a time", max_tokens=32, stop=["."])["choices"][0]["text"])

Models and contexts may be used from several threads: calls run one after the other, and results
are those of the last call. A batch and a chain belong to one thread. Closing an object twice is
harmless; using it after that is an error. ``docs/llama.md`` lists the functions of llama.h.
"""

from __future__ import annotations

from wgpu_backend.llama.arguments import (
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteriaList,
)
from wgpu_backend.llama.batch import Batch
from wgpu_backend.llama.cache import LlamaDiskCache, LlamaRAMCache, LlamaState
from wgpu_backend.llama.constants import (
    GGML_TYPE_BF16,
    GGML_TYPE_F16,
    GGML_TYPE_F32,
    GGML_TYPE_F64,
    GGML_TYPE_I8,
    GGML_TYPE_I16,
    GGML_TYPE_I32,
    GGML_TYPE_I64,
    GGML_TYPE_IQ1_M,
    GGML_TYPE_IQ1_S,
    GGML_TYPE_IQ2_S,
    GGML_TYPE_IQ2_XS,
    GGML_TYPE_IQ2_XXS,
    GGML_TYPE_IQ3_S,
    GGML_TYPE_IQ3_XXS,
    GGML_TYPE_IQ4_NL,
    GGML_TYPE_IQ4_XS,
    GGML_TYPE_MXFP4,
    GGML_TYPE_Q2_K,
    GGML_TYPE_Q3_K,
    GGML_TYPE_Q4_0,
    GGML_TYPE_Q4_1,
    GGML_TYPE_Q4_K,
    GGML_TYPE_Q5_0,
    GGML_TYPE_Q5_1,
    GGML_TYPE_Q5_K,
    GGML_TYPE_Q6_K,
    GGML_TYPE_Q8_0,
    GGML_TYPE_Q8_1,
    GGML_TYPE_Q8_K,
    GGML_TYPE_TQ1_0,
    GGML_TYPE_TQ2_0,
    LLAMA_POOLING_TYPE_CLS,
    LLAMA_POOLING_TYPE_LAST,
    LLAMA_POOLING_TYPE_MEAN,
    LLAMA_POOLING_TYPE_NONE,
    LLAMA_POOLING_TYPE_RANK,
    LLAMA_POOLING_TYPE_UNSPECIFIED,
    LLAMA_ROPE_SCALING_TYPE_LINEAR,
    LLAMA_ROPE_SCALING_TYPE_LONGROPE,
    LLAMA_ROPE_SCALING_TYPE_NONE,
    LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED,
    LLAMA_ROPE_SCALING_TYPE_YARN,
    LLAMA_SPLIT_MODE_LAYER,
    LLAMA_SPLIT_MODE_NONE,
    LLAMA_SPLIT_MODE_ROW,
    LLAMA_SPLIT_MODE_TENSOR,
)
from wgpu_backend.llama.context import Aborted, Context
from wgpu_backend.llama.grammar import LlamaGrammar
from wgpu_backend.llama.llama import Llama
from wgpu_backend.llama.memory import Memory
from wgpu_backend.llama.model import Model
from wgpu_backend.llama.perf import Perf, log_set
from wgpu_backend.llama.samplers import DEFAULT_SEED as LLAMA_DEFAULT_SEED
from wgpu_backend.llama.samplers import SamplerChain
from wgpu_backend.llama.states import StateError

# llama-cpp-python has both names.
LlamaCache = LlamaRAMCache

__all__ = [
    "GGML_TYPE_BF16",
    "GGML_TYPE_F16",
    "GGML_TYPE_F32",
    "GGML_TYPE_F64",
    "GGML_TYPE_I8",
    "GGML_TYPE_I16",
    "GGML_TYPE_I32",
    "GGML_TYPE_I64",
    "GGML_TYPE_IQ1_M",
    "GGML_TYPE_IQ1_S",
    "GGML_TYPE_IQ2_S",
    "GGML_TYPE_IQ2_XS",
    "GGML_TYPE_IQ2_XXS",
    "GGML_TYPE_IQ3_S",
    "GGML_TYPE_IQ3_XXS",
    "GGML_TYPE_IQ4_NL",
    "GGML_TYPE_IQ4_XS",
    "GGML_TYPE_MXFP4",
    "GGML_TYPE_Q2_K",
    "GGML_TYPE_Q3_K",
    "GGML_TYPE_Q4_0",
    "GGML_TYPE_Q4_1",
    "GGML_TYPE_Q4_K",
    "GGML_TYPE_Q5_0",
    "GGML_TYPE_Q5_1",
    "GGML_TYPE_Q5_K",
    "GGML_TYPE_Q6_K",
    "GGML_TYPE_Q8_0",
    "GGML_TYPE_Q8_1",
    "GGML_TYPE_Q8_K",
    "GGML_TYPE_TQ1_0",
    "GGML_TYPE_TQ2_0",
    "LLAMA_DEFAULT_SEED",
    "LLAMA_POOLING_TYPE_CLS",
    "LLAMA_POOLING_TYPE_LAST",
    "LLAMA_POOLING_TYPE_MEAN",
    "LLAMA_POOLING_TYPE_NONE",
    "LLAMA_POOLING_TYPE_RANK",
    "LLAMA_POOLING_TYPE_UNSPECIFIED",
    "LLAMA_ROPE_SCALING_TYPE_LINEAR",
    "LLAMA_ROPE_SCALING_TYPE_LONGROPE",
    "LLAMA_ROPE_SCALING_TYPE_NONE",
    "LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED",
    "LLAMA_ROPE_SCALING_TYPE_YARN",
    "LLAMA_SPLIT_MODE_LAYER",
    "LLAMA_SPLIT_MODE_NONE",
    "LLAMA_SPLIT_MODE_ROW",
    "LLAMA_SPLIT_MODE_TENSOR",
    "Aborted",
    "Batch",
    "Context",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
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
