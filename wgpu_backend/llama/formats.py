"""Formats of conversations by llama-cpp-python's names, for files without a good template.

Where that project's form differs from what a model was trained on, these have the latter: a line
break once and not twice behind a role, an opened answer, the system message of the conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """A format.

    Parameters
    ----------
    template : str
        Jinja.
    stop : tuple of str
        Texts that end an answer.
    """

    template: str
    stop: tuple[str, ...]


_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LLAMA2 = (
    "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% set ns.system = '<<SYS>>\n' ~ m.content ~ '\n<</SYS>>\n\n' %}"
    "{% elif m.role == 'user' %}[INST] {{ ns.system ~ m.content }} [/INST]"
    "{% set ns.system = '' %}{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
_LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
_GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else 'user' }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_HELPFUL = "You are a helpful assistant."
_CURIOUS = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions."
)
_PROGRAMS = "You are an intelligent programming assistant."
_DECIDES = (
    "The prompt below is a question to answer, a task to complete, or a conversation to respond "
    "to; decide which and write an appropriate response."
)


def _turns(
    system: str, user: str, assistant: str, opening: str, *stop: str, usual: str = ""
) -> Format:
    """A format with a text for each role, in which ``TEXT`` stands for what is said.

    `opening` begins the answer; `usual` is said by the system where the messages do not begin so.
    """
    begin = f"{{% if messages[0].role != 'system' %}}{_said(system, repr(usual))}{{% endif %}}"
    roles = [_said(each, "m.content") for each in (system, user, assistant)]
    return Format(
        f"{begin if usual else ''}{{% for m in messages %}}{{% if m.role == 'system' %}}{roles[0]}"
        f"{{% elif m.role == 'user' %}}{roles[1]}{{% elif m.role == 'assistant' %}}{roles[2]}"
        f"{{% endif %}}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ {opening!r} }}}}"
        "{% endif %}",
        stop,
    )


def _said(form: str, what: str) -> str:
    before, behind = form.split("TEXT")
    return f"{{{{ {before!r} ~ {what} ~ {behind!r} }}}}"


FORMATS: Mapping[str, Format] = {
    "chatml": Format(_CHATML, ("<|im_end|>",)),
    "qwen": _turns(
        "<|im_start|>system\nTEXT<|im_end|>\n",
        "<|im_start|>user\nTEXT<|im_end|>\n",
        "<|im_start|>assistant\nTEXT<|im_end|>\n",
        "<|im_start|>assistant\n",
        "<|im_end|>",
        "<|endoftext|>",
        usual=_HELPFUL,
    ),
    "llama-2": Format(_LLAMA2, ("</s>",)),
    "llama-3": Format(_LLAMA3, ("<|eot_id|>",)),
    "mistral-instruct": Format(_MISTRAL, ("</s>",)),
    "gemma": Format(_GEMMA, ("<end_of_turn>",)),
    "vicuna": _turns(
        "TEXT ", "USER: TEXT ", "ASSISTANT: TEXT</s>", "ASSISTANT:", "</s>", usual=_CURIOUS
    ),
    "alpaca": _turns(
        "TEXT\n\n",
        "### Instruction:\nTEXT\n\n",
        "### Response:\nTEXT</s>\n\n",
        "### Response:\n",
        "</s>",
        "### Instruction:",
    ),
    "zephyr": _turns(
        "<|system|>\nTEXT</s>\n",
        "<|user|>\nTEXT</s>\n",
        "<|assistant|>\nTEXT</s>\n",
        "<|assistant|>\n",
        "</s>",
    ),
    "openchat": _turns(
        "TEXT<|end_of_turn|>",
        "GPT4 Correct User: TEXT<|end_of_turn|>",
        "GPT4 Correct Assistant: TEXT<|end_of_turn|>",
        "GPT4 Correct Assistant:",
        "<|end_of_turn|>",
    ),
    "phind": _turns(
        "### System Prompt\nTEXT\n\n",
        "### User Message\nTEXT\n\n",
        "### Assistant\nTEXT\n\n",
        "### Assistant\n",
        "</s>",
        "### User Message",
        usual=_PROGRAMS,
    ),
    "saiga": _turns(
        "<s>system\nTEXT</s>", "<s>user\nTEXT</s>", "<s>bot\nTEXT</s>", "<s>bot\n", "</s>"
    ),
    "intel": _turns(
        "### System:\nTEXT\n", "### User:\nTEXT\n", "### Assistant:\nTEXT\n", "### Assistant:\n",
        "</s>", "### User:",
    ),
    "snoozy": _turns(
        "### Instruction:\nTEXT\n", "### Prompt: TEXT\n", "### Response: TEXT\n", "### Response:",
        "###", usual=_DECIDES,
    ),
    "redpajama-incite": _turns(
        "TEXT\n", "<human>: TEXT\n", "<bot>: TEXT\n", "<bot>:", "<human>"
    ),
    "oasst_llama": _turns(
        "[INST] <<SYS>>\nTEXT\n<</SYS>>\n\n",
        "<|prompter|>TEXT</s>",
        "<|assistant|>TEXT</s>",
        "<|assistant|>",
        "</s>",
    ),
    "mistrallite": _turns(
        "<|system|>TEXT</s>", "<|prompter|>TEXT</s>\n", "<|assistant|>TEXT</s>\n", "<|assistant|>",
        "</s>",
    ),
    "pygmalion": _turns(
        "<|system|>TEXT\n", "<|user|>TEXT\n", "<|model|>TEXT\n", "<|model|>", "<|user|>"
    ),
    "chatglm3": _turns(
        "<|system|>\nTEXT", "<|user|>\n TEXT", "<|assistant|>\n TEXT", "<|assistant|>", "</s>",
        "<|user|>",
    ),
    "baichuan": _turns(
        "TEXT", "<reserved_102>TEXT", "<reserved_103>TEXT", "<reserved_103>", "<reserved_102>"
    ),
    "baichuan-2": _turns(
        "TEXT", "<reserved_106>TEXT", "<reserved_107>TEXT", "<reserved_107>", "<reserved_106>"
    ),
}  # fmt: skip
