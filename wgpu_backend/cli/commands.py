"""The slash commands of a chat: `/set`, `/show` and others."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator

from wgpu_backend.cli.chat import Chat
from wgpu_backend.cli.console import answer, print_facts, print_table, remark
from wgpu_backend.cli.formats import grammar_of
from wgpu_backend.cli.history import require_file
from wgpu_backend.cli.library import text_of_modelfile
from wgpu_backend.cli.parameters import PARAMETERS
from wgpu_backend.cli.reply import write_stats
from wgpu_backend.cli.running import server_address
from wgpu_backend.cli.served_model import ServedModel
from wgpu_backend.cli.show import facts, license_of, template_of

HELP = '''\
  /set parameter NAME VALUE   choose how answers are made; without NAME, list what there is
  /set system TEXT            set the system message; without TEXT, remove it
  /set verbose, /set quiet    print timing statistics after each answer, or do not
  /set think, /set nothink    have the model reason first, or not
  /set format json            answer in JSON, or in a schema; /set noformat ends that
  /set wordwrap, nowordwrap   break lines between words, or do not
  /set history, nohistory     keep what you type for later chats, or do not
  /show info                  what the model is
  /show parameters            how answers are made
  /show template              the chat template
  /show modelfile, license    what a model of the store is made of, and its license
  /show system                the system message
  /show stats                 timing statistics of the last answer, and the memory of the device
  /load MODEL                 go on with another model, or a conversation that was saved
  /save NAME                  keep model, parameters and conversation as a model of the store
  /clear                      clear the conversation
  /bye                        leave, as Ctrl-D does
  /?, /help                   this list

  """                         begins and ends a text of several lines
  Ctrl-C                      stops an answer
'''


class Leave(Exception):
    """The user ended the chat."""


def obey(line: str, chat: Chat) -> None:
    """Run a slash command.

    Raises
    ------
    Leave
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


def _leave(chat: Chat, rest: str) -> None:
    raise Leave


def _help(chat: Chat, rest: str) -> None:
    answer(HELP)


def _clear(chat: Chat, rest: str) -> None:
    chat.messages.clear()
    remark("conversation cleared")


def _set(chat: Chat, rest: str) -> None:
    what, _, value = rest.partition(" ")
    if what == "parameter":
        _set_parameter(chat, _words(value))
    elif what == "system":
        chat.system = _unquoted(value.strip())
        remark("the system message is set" if chat.system else "the system message is removed")
    elif what == "format" and value:
        chat.grammar = grammar_of(value.strip(), None)
        remark("answers keep to the format")
    elif what in _SWITCHES and not value:
        name, state, told = _SWITCHES[what]
        if what == "history":
            require_file()
        setattr(chat, name, state)
        remark(told)
    else:
        remark(f"/set: needs parameter, system, format, {', '.join(_SWITCHES)}")


def _set_parameter(chat: Chat, words: list[str]) -> None:
    if not words:
        values = chat.parameters()
        rows = [(p.name, str(values[p.name]), p.range, p.help) for p in PARAMETERS.values()]
        print_table(("name", "value", "range", "what it does"), rows)
        return
    chat.set_parameter(words[0], words[1:])
    remark(f"{words[0]} is {chat.parameters()[words[0]]}")


def _load(chat: Chat, rest: str) -> None:
    if not rest:
        remark("/load: needs the name of a model")
        return
    chat.load(rest)
    said = f" with {len(chat.messages)} messages" if chat.messages else ""
    remark(f"loaded {rest}{said}")


def _save(chat: Chat, rest: str) -> None:
    if not rest:
        remark("/save: needs a name")
        return
    from wgpu_backend.cli.saving import save_chat

    remark(f"saved as {save_chat(chat, rest)}")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an unmatched quotation mark is a plain character
        return text.split()


def _unquoted(text: str) -> str:
    for mark in ('"""', '"'):
        if len(text) >= 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            return text[len(mark) : -len(mark)]
    return text


def _show(chat: Chat, rest: str) -> None:
    shown = _SHOWN.get(rest)
    if shown is None:
        remark(f"/show: needs {', '.join(_SHOWN)}")
        return
    shown(chat)


def _show_info(chat: Chat) -> None:
    if isinstance(chat.model, ServedModel):
        print_facts(_served_facts(chat.model))
        return
    device = chat.model.device
    print_facts(
        [
            *facts(chat.model.backend.file),
            *_changes(chat),
            ("device", f"{device.id} {device.name}"),
            ("context in use", f"{chat.model.num_ctx} positions"),
        ]
    )


def _served_facts(model: ServedModel) -> Iterator[tuple[str, str]]:
    """Yield a server's facts of its model."""
    yield "model", f"{model.name}, of the server at {server_address()[0]}"
    for name, value in model.shown.get("details", {}).items():
        yield name.replace("_", " "), str(value)
    yield "context in use", f"{model.num_ctx} positions"


def _changes(chat: Chat) -> Iterator[tuple[str, str]]:
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
        template = template_of(model.backend.config)
    answer((template or "none") + "\n")


def _show_system(chat: Chat) -> None:
    answer((chat.system or "none") + "\n")


def _show_stats(chat: Chat) -> None:
    write_stats(chat.model.stats)
    if not isinstance(chat.model, ServedModel):
        sys.stderr.write(f"\n{chat.model.memory_report()}\n")


def _show_modelfile(chat: Chat) -> None:
    answer(text_of_modelfile(chat.source))


def _show_license(chat: Chat) -> None:
    answer(license_of(chat.source) + "\n")


# For each word after /set: the field of the chat, its value, and the confirmation.
_SWITCHES: dict[str, tuple[str, object, str]] = {
    "verbose": ("verbose", True, "timing statistics follow each answer"),
    "quiet": ("verbose", False, "no timing statistics"),
    "think": ("think", True, "the model is to reason first"),
    "nothink": ("think", False, "the model is not to reason first"),
    "noformat": ("grammar", None, "answers keep to no format"),
    "wordwrap": ("wraps", True, "lines are broken between words"),
    "nowordwrap": ("wraps", False, "lines are not broken"),
    "history": ("keeps", True, "what you type is kept for later chats"),
    "nohistory": ("keeps", False, "what you type is not kept"),
}
_SHOWN: dict[str, Callable[[Chat], None]] = {
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
    "/bye": _leave,
    "/exit": _leave,
    "/help": _help,
    "/?": _help,
}
