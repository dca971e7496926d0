"""Chat templates that many models share, by llama.cpp's names for them."""

from __future__ import annotations

from wgpu_backend.errors import TemplateError

_REFUSED = "{% if m.role not in ('system', 'user', 'assistant') %}{{ raise_exception('a turn of role ' ~ m.role) }}{% endif %}"  # noqa: E501


def _turns(turn: str, prompt: str, before: str = "") -> str:
    """Return a template that writes all roles in the same form; `prompt` opens the answer."""
    each = "{% for m in messages %}" + turn + "{% endfor %}"
    return f"{before}{each}{{% if add_generation_prompt %}}{prompt}{{% endif %}}"


def _by_role(user: str, assistant: str, system: str, prompt: str, before: str = "") -> str:
    """Return a template with a text for each role, in which ``TEXT`` stands for the content."""
    said = [text.replace("TEXT", "{{ m.content | trim }}") for text in (system, user, assistant)]
    turn = (
        f"{_REFUSED}{{% if m.role == 'system' %}}{said[0]}{{% elif m.role == 'user' %}}{said[1]}"
        f"{{% else %}}{said[2]}{{% endif %}}"
    )
    return _turns(turn, prompt, before)


def _in_first_turn(system: str, user: str, assistant: str, before: str) -> str:
    """Return a template without system messages: the next user message has its text at ``SYSTEM``.

    `system` is the form of that text, in which ``TEXT`` stands for it, as for contents in the
    others.
    """
    kept = "{% set ns = namespace(system='') %}"
    turn = (
        f"{_REFUSED}{{% if m.role == 'system' %}}{{% set ns.system = m.content | trim %}}"
        f"{{% elif m.role == 'user' %}}{user}{{% set ns.system = '' %}}"
        f"{{% else %}}{assistant}{{% endif %}}"
    )
    given = "{% if ns.system %}" + system.replace("TEXT", "{{ ns.system }}") + "{% endif %}"
    turn = turn.replace("SYSTEM", given).replace("TEXT", "{{ m.content | trim }}")
    return kept + before + "{% for m in messages %}" + turn + "{% endfor %}"


_HEADERS = "{{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\\n\\n' ~ m.content | trim ~ '<|eot_id|>' }}"  # noqa: E501
_TURN = "<|START_OF_TURN_TOKEN|>"
NAMED = {
    "chatml": _turns(
        "{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}",
        "{{ '<|im_start|>assistant\\n' }}",
    ),
    "llama2": _in_first_turn(
        "<<SYS>>\n{{ '' }}TEXT\n<</SYS>>\n\n{{ '' }}",
        "{{ bos_token }}[INST] SYSTEMTEXT [/INST]",
        " TEXT {{ eos_token }}",
        "",
    ),
    "llama3": _turns(
        _HEADERS, "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}", "{{ bos_token }}"
    ),
    "llama4": _turns(
        "{{ '<|header_start|>' ~ m.role ~ '<|header_end|>\\n\\n' ~ m.content | trim ~ '<|eot|>' }}",
        "{{ '<|header_start|>assistant<|header_end|>\\n\\n' }}",
        "{{ bos_token }}",
    ),
    "mistral-v1": _in_first_turn(
        "TEXT\n\n{{ '' }}", " [INST] SYSTEMTEXT [/INST]", " TEXT{{ eos_token }}", "{{ bos_token }}"
    ),
    "mistral-v3": _in_first_turn(
        "TEXT\n\n{{ '' }}", "[INST] SYSTEMTEXT[/INST]", " TEXT{{ eos_token }}", "{{ bos_token }}"
    ),
    "mistral-v3-tekken": _in_first_turn(
        "TEXT\n\n{{ '' }}", "[INST]SYSTEMTEXT[/INST]", "TEXT{{ eos_token }}", "{{ bos_token }}"
    ),
    "mistral-v7": _by_role(
        "[INST] TEXT[/INST]",
        " TEXT{{ eos_token }}",
        "[SYSTEM_PROMPT] TEXT[/SYSTEM_PROMPT]",
        "",
        "{{ bos_token }}",
    ),
    "mistral-v7-tekken": _by_role(
        "[INST]TEXT[/INST]",
        "TEXT{{ eos_token }}",
        "[SYSTEM_PROMPT]TEXT[/SYSTEM_PROMPT]",
        "",
        "{{ bos_token }}",
    ),
    "phi3": _turns(
        "{{ '<|' ~ m.role ~ '|>\\n' ~ m.content ~ '<|end|>\\n' }}", "{{ '<|assistant|>\\n' }}"
    ),
    "phi4": _turns(
        "{{ '<|im_start|>' ~ m.role ~ '<|im_sep|>' ~ m.content ~ '<|im_end|>' }}",
        "<|im_start|>assistant<|im_sep|>",
    ),
    "zephyr": _turns(
        "{{ '<|' ~ m.role ~ '|>\\n' ~ m.content ~ eos_token ~ '\\n' }}", "{{ '<|assistant|>\\n' }}"
    ),
    "gemma": _in_first_turn(
        "TEXT\n\n{{ '' }}",
        "<start_of_turn>user\n{{ '' }}SYSTEMTEXT<end_of_turn>\n{{ '' }}",
        "<start_of_turn>model\n{{ '' }}TEXT<end_of_turn>\n{{ '' }}",
        "{{ bos_token }}",
    )
    + "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}",
    "vicuna": _by_role(
        "USER: TEXT\n{{ '' }}",
        "ASSISTANT: TEXT{{ eos_token }}\n{{ '' }}",
        "TEXT\n\n{{ '' }}",
        "ASSISTANT:",
    ),
    "deepseek3": _by_role(
        "<｜User｜>TEXT",
        "<｜Assistant｜>TEXT<｜end▁of▁sentence｜>",
        "TEXT\n\n{{ '' }}",
        "<｜Assistant｜>",
        "{{ bos_token }}",
    ),
    "command-r": _by_role(
        f"{_TURN}<|USER_TOKEN|>TEXT<|END_OF_TURN_TOKEN|>",
        f"{_TURN}<|CHATBOT_TOKEN|>TEXT<|END_OF_TURN_TOKEN|>",
        f"{_TURN}<|SYSTEM_TOKEN|>TEXT<|END_OF_TURN_TOKEN|>",
        f"{_TURN}<|CHATBOT_TOKEN|>",
    ),
    "granite": _turns(
        "{{ '<|start_of_role|>' ~ m.role ~ '<|end_of_role|>' ~ m.content ~ '<|end_of_text|>\\n' }}",
        "<|start_of_role|>assistant<|end_of_role|>",
    ),
}
"""Jinja of each template, by llama.cpp's name."""


def resolve_template(text: str) -> str:
    """Return the Jinja of a template given by its name or as Jinja itself.

    Raises
    ------
    TemplateError
        The text is not a name, and not a Jinja template.
    """
    if text in NAMED:
        return NAMED[text]
    if "{{" in text or "{%" in text:
        return text
    raise TemplateError(
        f"chat template: {text[:40]!r}, needs Jinja, or a name: {', '.join(sorted(NAMED))}"
    )
