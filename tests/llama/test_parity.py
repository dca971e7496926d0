"""docs/llama.md: each name it lists exists, and its examples run."""

import inspect
import re
from pathlib import Path

import pytest

import wgpu_backend
from wgpu_backend import llama
from wgpu_backend.engine.loading import bundled

PAGE = Path(__file__).parents[2] / "docs" / "llama.md"
# Public names of llama-cpp-python 0.3.36.
LLAMA = """__init__ ctx model eval_tokens eval_logits tokenize detokenize set_cache set_seed reset
    eval
    sample generate create_embedding embed create_completion __call__ create_chat_completion
    create_chat_completion_openai_v1 __getstate__ __setstate__ save_state load_state n_ctx n_embd
    n_vocab tokenizer token_eos token_bos token_nl pooling_type close logits_to_logprobs
    longest_token_prefix from_pretrained metadata _input_ids _scores""".split()  # noqa: SIM905
GROUPS = """model_load model_n_ model_meta model_has model_quantize n_ctx batch_init encode decode
    set_n_threads get_logits get_embeddings memory_clear memory_seq memory_can state_get state_seq
    vocab_get vocab_is vocab_fim tokenize detokenize adapter_lora set_adapters_lora
    sampler_chain sampler_init sampler_sample sampler_clone log_set perf_context opt_init
    split_path set_abort_callback set_embeddings backend_init numa_init""".split()  # noqa: SIM905
SIGNATURES = {
    "create_completion": """prompt suffix max_tokens temperature top_p min_p typical_p logprobs echo
        stop frequency_penalty presence_penalty repeat_penalty top_k stream seed tfs_z mirostat_mode
        mirostat_tau mirostat_eta model stopping_criteria logits_processor grammar logit_bias""",
    "create_chat_completion": """messages functions function_call tools tool_choice temperature
        top_p top_k min_p typical_p stream stop seed response_format max_tokens presence_penalty
        frequency_penalty repeat_penalty tfs_z mirostat_mode mirostat_tau mirostat_eta model
        logits_processor grammar logit_bias logprobs top_logprobs""",
    "generate": """tokens top_k top_p min_p typical_p temp repeat_penalty reset frequency_penalty
        presence_penalty tfs_z mirostat_mode mirostat_tau mirostat_eta penalize_nl logits_processor
        stopping_criteria grammar""",
    "sample": """top_k top_p min_p typical_p temp repeat_penalty frequency_penalty presence_penalty
        tfs_z mirostat_mode mirostat_eta mirostat_tau penalize_nl logits_processor grammar idx""",
    "embed": "input normalize truncate return_count",
    "create_embedding": "input model",
    "tokenize": "text add_bos special",
    "detokenize": "tokens prev_tokens special",
}
INIT = """model_path n_gpu_layers split_mode main_gpu tensor_split vocab_only use_mmap use_mlock
    kv_overrides seed n_ctx n_batch n_ubatch n_threads n_threads_batch rope_scaling_type
    pooling_type attention_type rope_freq_base rope_freq_scale yarn_ext_factor yarn_attn_factor
    yarn_beta_fast yarn_beta_slow yarn_orig_ctx logits_all embedding offload_kqv flash_attn
    op_offload swa_full no_perf last_n_tokens_size lora_base lora_scale lora_path numa chat_format
    chat_handler draft_model tokenizer type_k type_v spm_infill verbose""".split()  # noqa: SIM905


def rows():
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(cell):
    return re.findall(r"`([\w.]+)`", cell)


def test_every_name_has_a_row():
    listed = [name for row in rows() for name in names(row[0])]
    assert len(listed) == len(set(listed))
    assert set(LLAMA) <= set(listed)
    functions = [name for name in listed if name.startswith("llama_")]
    missing = [g for g in GROUPS if not any(f.startswith(f"llama_{g}") for f in functions)]
    assert missing == []


@pytest.mark.parametrize("row", rows(), ids=lambda row: names(row[0])[0])
def test_a_row_names_an_attribute_or_a_reason(row):
    found = names(row[1])
    if row[1].startswith("no: "):
        assert len(row[1]) > 20
    else:
        assert len(found) == len(names(row[0]))
    for name in found:
        if name.startswith("wgpu_backend."):
            assert hasattr(wgpu_backend, name.split(".")[1])
            continue
        of, *rest = name.split(".")
        kind = getattr(llama, of)
        assert not rest or hasattr(kind, rest[0]) or rest[0] == "perf"


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_come_in_llama_cpp_pythons_order(name):
    own = list(inspect.signature(getattr(llama.Llama, name)).parameters)[1:]
    wanted = SIGNATURES[name].split()
    assert own[: len(wanted)] == wanted


def test_every_argument_of_the_class_is_taken_or_refused_by_name():
    from wgpu_backend.llama.arguments import IGNORED, NEUTRAL

    own = set(inspect.signature(llama.Llama.__init__).parameters)
    assert set(INIT) - own - set(IGNORED) - set(NEUTRAL) == set()


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_the_examples_run(number, capsys):
    text = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[number]
    text = text.replace('"model.gguf"', f'{str(bundled())!r}, device="cpu"')
    exec(compile(text, PAGE.name, "exec"), {})
    assert len(capsys.readouterr().out) > 20
