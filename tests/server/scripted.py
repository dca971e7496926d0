"""A model that follows a script: a token decides the next, whatever came before."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
from gguf import GGUFWriter

from tests.builders import byte_alphabet

WIDTH, CONTEXT = 64, 512
CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
Scripts = Mapping[str, list[str]]
SCRIPTS: Scripts = {
    "<|plain|>": ["Hello", " there", " now."],
    "<|tools|>": ["<tool_call>", CALL, "</tool_call>"],
    "<|after|>": ["It", " is", " cold."],
    "<|think|>": ["<think>", "\nhm", "\n</think>\n\n", "Yes"],
    "<|fim_middle|>": ["in", " between"],
}
TEMPLATE = (
    "{# <tool_call> <think> #}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if enable_thinking %}<|think|>{% elif messages and messages[-1].role == 'tool' %}<|after|>"
    "{% elif tools %}<|tools|>{% else %}<|plain|>{% endif %}"
)


# For programs whose prompts have thousands of words: the model reads a little of each.
BRIEF = (
    "{# <tool_call> #}{% for m in messages %}{{ m.role }}: {{ (m.content or '')[:1500] }}\n"
    "{% endfor %}{% if messages[-1].role == 'tool' %}<|after|>"
    "{% elif tools and CALLS %}<|tools|>{% else %}<|plain|>{% endif %}"
)


def scripted(
    path: Path,
    tags: tuple[str, ...] = (),
    scripts: Scripts = SCRIPTS,
    template: str = TEMPLATE,
    context: int = CONTEXT,
) -> Path:
    """Write the model; `tags` are the tokens of scripts that are control tokens."""
    said = ["qq", *(token for script in scripts.values() for token in script)]
    controls = ["<|end|>", *scripts, "<|fim_prefix|>", "<|fim_suffix|>"]
    letters = dict(zip(byte_alphabet(), range(256), strict=True))
    spelled = {byte: letter for letter, byte in letters.items()}
    tokens = [*letters, *("".join(spelled[b] for b in t.encode()) for t in said), *controls]
    first, end = len(letters), len(letters) + len(said)
    state = {end + 1 + i: i for i in range(len(scripts))}  # dimensions of tokens that matter
    state |= {first + i: len(scripts) + i for i in range(len(said))}
    embed, logits = np.zeros((2, len(tokens), WIDTH), "f4")
    for token, dimension in state.items():
        embed[token, dimension] = 1
    at = first + 1  # behind what the one merge makes, which a vocabulary has to have
    for number, script in enumerate(scripts.values()):
        chain = [end + 1 + number, *range(at, at + len(script)), end]
        at += len(script)
        for token, follower in pairwise(chain):
            logits[follower, state[token]] = 10
    _write(path, tokens, {*controls, *tags}, embed, logits, template, context)
    return path


def _write(path, tokens, controls, embed, logits, template, context) -> None:
    writer = GGUFWriter(path, "llama")
    numbers = {
        "context_length": context, "embedding_length": WIDTH, "block_count": 1,
        "vocab_size": len(tokens),
        "feed_forward_length": WIDTH, "attention.head_count": 2, "attention.head_count_kv": 2,
        "rope.dimension_count": WIDTH // 2,
    }  # fmt: skip
    for key, value in numbers.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in controls else normal for token in tokens])
    writer.add_token_merges(["q q"])
    writer.add_eos_token_id(tokens.index("<|end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)
    square = np.zeros((WIDTH, WIDTH), "f4")
    writer.add_tensor("token_embd.weight", embed)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", square)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, "f4"))
    writer.add_tensor("output.weight", logits)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
