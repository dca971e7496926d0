"""Chat formats under llama-cpp-python's names, for files without a good template.

Where that project's text differs from the models' training, these formats follow the training. They
have one line break after a role and not two, begin the answer, and use a given system message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wgpu_backend.engine.prompt import Prompter
from wgpu_backend.errors import OptionError
from wgpu_backend.llama.model import Model
from wgpu_backend.text.chat_template import ChatTemplate

# The name that `Llama.chat_format` has for the template of the model's file.
FILE_FORMAT = "chat_template.default"


@dataclass(frozen=True, slots=True)
class Format:
    """A chat format.

    Parameters
    ----------
    template : str
        Jinja template of a conversation.
    stop : tuple of str
        Texts that end an answer.
    """

    template: str
    stop: tuple[str, ...]


_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The system message stands within the first [INST], as in Llama 2's own code: a namespace holds it
# until then, since loops in Jinja cannot set outer variables.
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
# Mistral 7B Instruct has no system role: system messages are left out.
_MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
# Gemma has no system role: a system message becomes a user message.
_GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else 'user' }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_QWEN_SYSTEM = "You are a helpful assistant."
_VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions."
)
_PHIND_SYSTEM = "You are an intelligent programming assistant."
_SNOOZY_SYSTEM = (
    "The prompt below is a question to answer, a task to complete, or a conversation to respond "
    "to; decide which and write an appropriate response."
)


def _make_format(
    system: str,
    user: str,
    assistant: str,
    opening: str,
    *stop: str,
    default_system: str | None = None,
) -> Format:
    """Return a format with a text for each role, in which ``TEXT`` stands for the message.

    Parameters
    ----------
    opening : str
        Beginning of the answer.
    default_system : str or None
        System message of conversations that do not begin with one.
    """
    begin = ""
    if default_system:
        text = _fill(system, repr(default_system))
        begin = f"{{% if messages[0].role != 'system' %}}{text}{{% endif %}}"
    roles = [_fill(each, "m.content") for each in (system, user, assistant)]
    return Format(
        f"{begin}{{% for m in messages %}}{{% if m.role == 'system' %}}{roles[0]}"
        f"{{% elif m.role == 'user' %}}{roles[1]}{{% elif m.role == 'assistant' %}}{roles[2]}"
        f"{{% endif %}}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ {opening!r} }}}}"
        "{% endif %}",
        stop,
    )


def _fill(form: str, expression: str) -> str:
    """Return a Jinja snippet that prints a text, with ``TEXT`` replaced by an expression."""
    # The texts are string literals of an expression: Jinja strips the line break after a block.
    before, after = form.split("TEXT")
    return f"{{{{ {before!r} ~ {expression} ~ {after!r} }}}}"


FORMATS: Mapping[str, Format] = {
    "chatml": Format(_CHATML, ("<|im_end|>",)),
    "qwen": _make_format(
        "<|im_start|>system\nTEXT<|im_end|>\n",
        "<|im_start|>user\nTEXT<|im_end|>\n",
        "<|im_start|>assistant\nTEXT<|im_end|>\n",
        "<|im_start|>assistant\n",
        "<|im_end|>",
        "<|endoftext|>",
        default_system=_QWEN_SYSTEM,
    ),
    "llama-2": Format(_LLAMA2, ("</s>",)),
    "llama-3": Format(_LLAMA3, ("<|eot_id|>",)),
    "mistral-instruct": Format(_MISTRAL, ("</s>",)),
    "gemma": Format(_GEMMA, ("<end_of_turn>",)),
    "vicuna": _make_format(
        "TEXT ", "USER: TEXT ", "ASSISTANT: TEXT</s>", "ASSISTANT:", "</s>",
        default_system=_VICUNA_SYSTEM,
    ),
    "alpaca": _make_format(
        "TEXT\n\n",
        "### Instruction:\nTEXT\n\n",
        "### Response:\nTEXT</s>\n\n",
        "### Response:\n",
        "</s>",
        "### Instruction:",
    ),
    "zephyr": _make_format(
        "<|system|>\nTEXT</s>\n",
        "<|user|>\nTEXT</s>\n",
        "<|assistant|>\nTEXT</s>\n",
        "<|assistant|>\n",
        "</s>",
    ),
    "openchat": _make_format(
        "TEXT<|end_of_turn|>",
        "GPT4 Correct User: TEXT<|end_of_turn|>",
        "GPT4 Correct Assistant: TEXT<|end_of_turn|>",
        "GPT4 Correct Assistant:",
        "<|end_of_turn|>",
    ),
    "phind": _make_format(
        "### System Prompt\nTEXT\n\n",
        "### User Message\nTEXT\n\n",
        "### Assistant\nTEXT\n\n",
        "### Assistant\n",
        "</s>",
        "### User Message",
        default_system=_PHIND_SYSTEM,
    ),
    "saiga": _make_format(
        "<s>system\nTEXT</s>", "<s>user\nTEXT</s>", "<s>bot\nTEXT</s>", "<s>bot\n", "</s>"
    ),
    "intel": _make_format(
        "### System:\nTEXT\n", "### User:\nTEXT\n", "### Assistant:\nTEXT\n", "### Assistant:\n",
        "</s>", "### User:",
    ),
    "snoozy": _make_format(
        "### Instruction:\nTEXT\n", "### Prompt: TEXT\n", "### Response: TEXT\n", "### Response:",
        "###", default_system=_SNOOZY_SYSTEM,
    ),
    "redpajama-incite": _make_format(
        "TEXT\n", "<human>: TEXT\n", "<bot>: TEXT\n", "<bot>:", "<human>"
    ),
    "oasst_llama": _make_format(
        "[INST] <<SYS>>\nTEXT\n<</SYS>>\n\n",
        "<|prompter|>TEXT</s>",
        "<|assistant|>TEXT</s>",
        "<|assistant|>",
        "</s>",
    ),
    "mistrallite": _make_format(
        "<|system|>TEXT</s>", "<|prompter|>TEXT</s>\n", "<|assistant|>TEXT</s>\n", "<|assistant|>",
        "</s>",
    ),
    "pygmalion": _make_format(
        "<|system|>TEXT\n", "<|user|>TEXT\n", "<|model|>TEXT\n", "<|model|>", "<|user|>"
    ),
    "chatglm3": _make_format(
        "<|system|>\nTEXT", "<|user|>\n TEXT", "<|assistant|>\n TEXT", "<|assistant|>", "</s>",
        "<|user|>",
    ),
    "baichuan": _make_format(
        "TEXT", "<reserved_102>TEXT", "<reserved_103>TEXT", "<reserved_103>", "<reserved_102>"
    ),
    "baichuan-2": _make_format(
        "TEXT", "<reserved_106>TEXT", "<reserved_107>TEXT", "<reserved_107>", "<reserved_106>"
    ),
}  # fmt: skip


def make_prompter(model: Model, name: str | None) -> tuple[Prompter, Sequence[str]]:
    """Return a renderer of conversations and the texts that end an answer.

    Parameters
    ----------
    name : str or None
        A key of `FORMATS`; None or `FILE_FORMAT` for the template of the model's file.

    Raises
    ------
    OptionError
        There is no such format.
    """
    prompter = model.language.prompter
    tokens = (model.token_bos(), model.token_eos())
    bos, eos = (model.token_get_text(each) if each >= 0 else "" for each in tokens)
    if name in (None, FILE_FORMAT) and prompter.template is not None:
        return prompter, [eos] if eos else []
    # llama-cpp-python also falls back to llama-2.
    name = name or "llama-2"
    if name not in FORMATS:
        raise OptionError(f"chat_format: {name!r}, needs one of {', '.join(FORMATS)}, or None")
    # A prompter of its own, since model.language keeps the file's template.
    made, found = Prompter(model.config, model.tokenizer), FORMATS[name]
    made.template = ChatTemplate(found.template, bos_token=bos, eos_token=eos)
    return made, found.stop
