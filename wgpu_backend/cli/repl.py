"""A chat on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.formatted_text import HTML
from prompt_toolkit.output import create_output

from wgpu_backend.cli.console import remark
from wgpu_backend.cli.failures import UsageError, describe_error, one_line
from wgpu_backend.cli.history import open_history
from wgpu_backend.cli.reply import write_stats
from wgpu_backend.cli.slash_commands import ChatEnded, run_slash_command
from wgpu_backend.errors import BackendError

if TYPE_CHECKING:
    from wgpu_backend.cli.chat import Chat

FENCE = '"""'
_HINT = HTML("<gray>Type a message, /? for help</gray>")


def converse(chat: Chat) -> None:
    """Read prompts and commands until the user leaves."""
    session: PromptSession[str] = PromptSession(
        output=create_output(always_prefer_tty=True), history=open_history(lambda: chat.keeps)
    )
    if not chat.uses_template:
        remark("the model has no chat template: each prompt is continued on its own")
    while True:
        try:
            _handle_input(chat, read(session))
        except KeyboardInterrupt:
            remark("Ctrl-D or /bye leaves")
        except (EOFError, ChatEnded):
            return
        except (BackendError, UsageError, OSError) as error:
            remark(one_line(describe_error(error)))


def _handle_input(chat: Chat, text: str) -> None:
    if text.startswith("/") and "\n" not in text:
        run_slash_command(text, chat)
    elif text.strip():
        chat.ask(text)
        if chat.verbose:
            write_stats(chat.model.stats)


def _make_hint() -> HTML | str:
    """Return the hint for an empty line; none for a finished line, which stays on the screen."""
    return "" if get_app().is_done else _HINT


def read(session: PromptSession[str]) -> str:
    """Read one prompt: a line, or several between ``\"\"\"`` marks.

    Raises
    ------
    EOFError
        The user pressed Ctrl-D.
    KeyboardInterrupt
        The user pressed Ctrl-C.
    """
    line = session.prompt(">>> ", placeholder=_make_hint)
    if not line.lstrip().startswith(FENCE):
        return line
    lines = [line.lstrip().removeprefix(FENCE)]
    while not lines[-1].rstrip().endswith(FENCE):
        lines.append(session.prompt("... ", placeholder=""))
    lines[-1] = lines[-1].rstrip().removesuffix(FENCE)
    return "\n".join(lines).strip("\n")
