"""The slash commands of a chat: `/set`, `/show`, `/save` and others."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wgpu_backend.cli.chat import Chat, get_text
from wgpu_backend.cli.console import print_facts, print_table, print_text, remark
from wgpu_backend.cli.formats import make_grammar
from wgpu_backend.cli.history import make_history_file
from wgpu_backend.cli.model_facts import find_license, list_facts, read_template
from wgpu_backend.cli.names import BUNDLED, exists
from wgpu_backend.cli.parameters import PARAMETERS
from wgpu_backend.cli.reply import write_stats
from wgpu_backend.cli.served_model import ServedModel
from wgpu_backend.cli.server_client import server_url
from wgpu_backend.cli.store import format_modelfile, open_store

HELP = '''\
  /set parameter NAME VALUE   set a parameter; without NAME, list all parameters
  /set system TEXT            set the system message; without TEXT, remove it
  /set verbose, /set quiet    turn timing statistics after answers on or off
  /set think, /set nothink    turn reasoning on or off
  /set format json            answer in JSON, or by a JSON schema; /set noformat ends that
  /set wordwrap, nowordwrap   turn word wrapping on or off
  /set history, nohistory     turn storing of the input history on or off
  /show info                  facts about the model
  /show parameters            values of the parameters
  /show template              the chat template
  /show modelfile, license    Modelfile and license of the model
  /show system                the system message
  /show stats                 timing statistics of the last answer, and memory of the device
  /load MODEL                 switch to another model or a saved conversation
  /save NAME                  store model, parameters and conversation as a model
  /clear                      clear the conversation
  /bye                        leave, as Ctrl-D does
  /?, /help                   this list

  """                         begins and ends a text of several lines
  Ctrl-C                      stops an answer
'''


class ChatEnded(Exception):
    """The user ended the chat."""


def run_slash_command(line: str, chat: Chat) -> None:
    """Run a slash command.

    Raises
    ------
    ChatEnded
        The command is ``/bye``.
    OptionError
        A parameter is unknown, or the value is invalid.
    """
    word, _, rest = line.strip().partition(" ")
    command = _COMMANDS.get(word)
    if command is None:
        remark(f"{word}: no such command, /? lists them")
        return
    command(chat, rest.strip())


def _end(chat: Chat, rest: str) -> None:
    raise ChatEnded


def _help(chat: Chat, rest: str) -> None:
    print_text(HELP)


def _clear(chat: Chat, rest: str) -> None:
    chat.messages.clear()
    remark("conversation cleared")


def _set(chat: Chat, rest: str) -> None:
    word, _, value = rest.partition(" ")
    if word == "parameter":
        _set_parameter(chat, _split_words(value))
    elif word == "system":
        chat.system = _unquote(value.strip())
        remark("the system message is set" if chat.system else "the system message is removed")
    elif word == "format" and value:
        chat.grammar = make_grammar(value.strip(), None)
        remark("answers follow the format")
    elif word in _SWITCHES and not value:
        name, setting, confirmation = _SWITCHES[word]
        if word == "history":
            make_history_file()
        setattr(chat, name, setting)
        remark(confirmation)
    else:
        remark(f"/set: needs parameter, system, format, {', '.join(_SWITCHES)}")


def _set_parameter(chat: Chat, words: list[str]) -> None:
    if not words:
        values = chat.parameters()
        rows = [(p.name, str(values[p.name]), p.range, p.help) for p in PARAMETERS.values()]
        print_table(("name", "value", "range", "description"), rows)
        return
    chat.set_parameter(words[0], words[1:])
    remark(f"{words[0]} is {chat.parameters()[words[0]]}")


def _load(chat: Chat, rest: str) -> None:
    if not rest:
        remark("/load: needs the name of a model")
        return
    chat.load(rest)
    messages = f" with {len(chat.messages)} messages" if chat.messages else ""
    remark(f"loaded {rest}{messages}")


def _save(chat: Chat, rest: str) -> None:
    if not rest:
        remark("/save: needs a name")
        return
    remark(f"saved as {_save_chat(chat, rest)}")


def _save_chat(chat: Chat, name: str) -> str:
    """Save a chat's model, parameters and messages as a model in the store.

    Returns
    -------
    str
        The complete name.

    Raises
    ------
    StoreError
        The name is invalid, the store is read-only, the disk is full, or the model is a folder.
    """
    from wgpu_backend.files.store.modelfile import Modelfile
    from wgpu_backend.files.store.names import ModelName
    from wgpu_backend.files.store.stored import create

    file = BUNDLED.get(chat.source) or Path(chat.source)
    is_file = chat.source in BUNDLED or exists(chat.source)
    modelfile = Modelfile(
        # A relative path would depend on the folder in which the model is opened.
        str(file.absolute()) if is_file else chat.source,
        _list_chosen(chat),
        # An empty text removes the system message that the base model has in the store.
        system=chat.system or (None if is_file else ""),
        messages=[(str(each["role"]), get_text(each)) for each in chat.messages],
    )
    parsed = ModelName.parse(name)
    create(open_store(), parsed, modelfile, Path())
    return str(parsed)


def _list_chosen(chat: Chat) -> dict[str, Any]:
    """Return the parameters that the user set, without empty ones."""
    values = chat.parameters()
    return {
        # Modelfiles have no words for these two, which are the defaults anyway.
        name: values[name]
        for name in sorted(chat.chosen)
        if values[name] not in ("random", "none")
    }


def _split_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        # An unmatched quotation mark is a plain character, as in a stop text of one quote.
        return text.split()


def _unquote(text: str) -> str:
    # The longer mark comes first, since it begins with the shorter one.
    for mark in ('"""', '"'):
        if len(text) >= 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            return text[len(mark) : -len(mark)]
    return text


def _show(chat: Chat, rest: str) -> None:
    show = _SHOW_PARTS.get(rest)
    if show is None:
        remark(f"/show: needs {', '.join(_SHOW_PARTS)}")
        return
    show(chat)


def _show_info(chat: Chat) -> None:
    if isinstance(chat.model, ServedModel):
        print_facts(_list_served_facts(chat.model))
        return
    device = chat.model.device
    print_facts(
        [
            *list_facts(chat.model.backend.file),
            *_list_adapters(chat),
            ("device", f"{device.id} {device.name}"),
            ("context in use", f"{chat.model.num_ctx} positions"),
        ]
    )


def _list_served_facts(model: ServedModel) -> Iterator[tuple[str, str]]:
    """Yield a server's facts of its model."""
    yield "model", f"{model.name}, of the server at {server_url()[0]}"
    for name, value in model.shown.get("details", {}).items():
        yield name.replace("_", " "), str(value)
    yield "context in use", f"{model.num_ctx} positions"


def _list_adapters(chat: Chat) -> Iterator[tuple[str, str]]:
    """Yield the adapters and control vectors of the model."""
    assert not isinstance(chat.model, ServedModel)
    set_now = chat.model.adapters
    for label, files in (("adapter", set_now.loras), ("control vector", set_now.control_vectors)):
        for path, scale in files:
            yield label, f"{path}, times {scale:g}"


def _show_parameters(chat: Chat) -> None:
    print_facts((name, str(value)) for name, value in chat.parameters().items())


def _show_template(chat: Chat) -> None:
    model = chat.model
    if isinstance(model, ServedModel):
        template = model.template
    else:
        template = read_template(model.backend.config)
    print_text((template or "none") + "\n")


def _show_system(chat: Chat) -> None:
    print_text((chat.system or "none") + "\n")


def _show_stats(chat: Chat) -> None:
    write_stats(chat.model.stats)
    if not isinstance(chat.model, ServedModel):
        sys.stderr.write(f"\n{chat.model.memory_report()}\n")


def _show_modelfile(chat: Chat) -> None:
    print_text(format_modelfile(chat.source))


def _show_license(chat: Chat) -> None:
    print_text(find_license(chat.source) + "\n")


# For each word after /set: the field of the chat, its value, and the confirmation.
_SWITCHES: dict[str, tuple[str, object, str]] = {
    "verbose": ("verbose", True, "timing statistics follow each answer"),
    "quiet": ("verbose", False, "no timing statistics"),
    "think": ("think", True, "reasoning is on"),
    "nothink": ("think", False, "reasoning is off"),
    "noformat": ("grammar", None, "answers have no format"),
    "wordwrap": ("wraps", True, "lines are wrapped at words"),
    "nowordwrap": ("wraps", False, "lines are not wrapped"),
    "history": ("keeps", True, "the input history is stored"),
    "nohistory": ("keeps", False, "the input history is not stored"),
}
_SHOW_PARTS: dict[str, Callable[[Chat], None]] = {
    "info": _show_info,
    "parameters": _show_parameters,
    "template": _show_template,
    "system": _show_system,
    "stats": _show_stats,
    "modelfile": _show_modelfile,
    "license": _show_license,
}
_COMMANDS: dict[str, Callable[[Chat, str], None]] = {
    "/set": _set,
    "/show": _show,
    "/load": _load,
    "/save": _save,
    "/clear": _clear,
    "/bye": _end,
    "/exit": _end,
    "/help": _help,
    "/?": _help,
}
