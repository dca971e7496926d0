"""Reading and writing of Modelfiles."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypeGuard, cast

from wgpu_backend.errors import StoreError
from wgpu_backend.files.gguf.reader import PART_NAME
from wgpu_backend.files.store.names import ModelName

Values = dict[str, int | float | bool | str | list[str]]
_ONE = {
    "FROM",
    "ADAPTER",
    "TEMPLATE",
    "SYSTEM",
    "LICENSE",
    "DRAFT",
    "RENDERER",
    "PARSER",
    "REQUIRES",
}
# Commands with a parameter's name, or a role, before the value.
_WITH_WORD = ("PARAMETER", "MESSAGE")
_BEGINS = re.compile(rf"\s*(#|({'|'.join((*_ONE, *_WITH_WORD))})[ \t])", re.IGNORECASE)
_WORD = re.compile(r"\s*(\S+)[ \t]*(.*)", re.DOTALL)
_ROLES = ("system", "user", "assistant", "tool")
_DEPRECATED = {
    "penalize_newline", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock",
}  # fmt: skip
_WHOLE = {
    "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_predict", "num_keep", "top_k",
    "repeat_last_n", "seed", "draft_num_predict", "mirostat", "dry_allowed_length",
    "dry_penalty_last_n", "min_keep",
}  # fmt: skip
_REAL = {
    "temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty",
    "frequency_penalty", "tfs_z", "mirostat_tau", "mirostat_eta", "dry_multiplier", "dry_base",
    "xtc_probability", "xtc_threshold", "top_n_sigma", "dynatemp_range", "dynatemp_exponent",
}  # fmt: skip
_SWITCHES = {"use_mmap", "numa"}
# Parameters that are lists of strings.
_TEXTS = {"stop", "dry_sequence_breakers", "samplers"}
Base: TypeAlias = "str | ModelName | Path | tuple[Path, ...]"
KNOWN_PARAMETERS = frozenset({*_WHOLE, *_REAL, *_SWITCHES, *_DEPRECATED, *_TEXTS})


@dataclass(slots=True)
class Modelfile:
    """The recipe of a model.

    Parameters
    ----------
    base : str, ModelName, Path or tuple of Path
        A model's name, or the path of a GGUF file or a folder; a string may be either. A tuple has
        the parts of a split file in any order, or one file.
    parameters : dict
        By name; ``stop`` and other string parameters are lists.
    adapters, licenses : list of str
        Paths of adapters, and texts of licenses.
    template, system : str or None
        Chat template, and system message.
    messages : list of (str, str)
        Roles and contents.
    projector : str or None
        Path of the model's tower, an mmproj file: a second ``FROM`` line. Either of the two may be
        the tower.
    """

    base: Base = ""
    parameters: Values = field(default_factory=Values)
    adapters: list[str] = field(default_factory=list[str])
    licenses: list[str] = field(default_factory=list[str])
    template: str | None = None
    system: str | None = None
    messages: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    projector: str | None = None


def parse_modelfile(text: str) -> Modelfile:
    """Parse a Modelfile.

    Raises
    ------
    StoreError
        A line is not a command, a value is of the wrong kind, or there is no ``FROM``.
    """
    made = Modelfile()
    for line, command, word, value in _commands(text):
        _obey(made, line, command, word, value)
    if not made.base:
        raise StoreError("Modelfile: no FROM line")
    return made


def _obey(made: Modelfile, line: int, command: str, word: str, value: str) -> None:
    match command:
        case "FROM":
            _add_base(made, line, value)
        case "ADAPTER":
            made.adapters.append(value)
        case "LICENSE":
            made.licenses.append(value)
        case "TEMPLATE":
            made.template = value
        case "SYSTEM":
            made.system = value
        case "MESSAGE":
            made.messages.append((_role(line, word), value))
        case "PARAMETER":
            _set(made.parameters, line, word.lower(), value)
        case "RENDERER" | "PARSER" | "REQUIRES":
            # For Ollama's own code: here the template determines the format of answers.
            pass
        case _:
            raise StoreError(f"Modelfile: line {line}: {command} is not supported")


def _add_base(made: Modelfile, line: int, value: str) -> None:
    """Set the base or the tower; for a split file, keep the line of its first part."""
    before = str(made.base)
    found = PART_NAME.fullmatch(before), PART_NAME.fullmatch(value)
    if found[0] and found[1] and found[0].group(1, 3) == found[1].group(1, 3):
        made.base = min(before, value)
    elif not before:
        made.base = value
    elif made.projector is None:
        made.projector = value
    else:
        raise StoreError(
            f"Modelfile: line {line}: a third FROM, needs a model, and at most its mmproj file"
        )


def _role(line: int, role: str) -> str:
    if role.lower() not in _ROLES:
        raise StoreError(f"Modelfile: line {line}: role {role!r}, needs one of {', '.join(_ROLES)}")
    return role.lower()


def _set(values: Values, line: int, name: str, text: str) -> None:
    if name in _DEPRECATED:
        return
    where = f"Modelfile: line {line}: parameter {name}"
    if name in _TEXTS:
        texts = values.setdefault(name, [])
        assert isinstance(texts, list)
        texts.append(text)
        return
    try:
        values[name] = _value(name, text)
    except KeyError:
        known = ", ".join(sorted({*_WHOLE, *_REAL, *_SWITCHES, *_TEXTS}))
        raise StoreError(f"{where}: unknown, needs one of {known}") from None
    except ValueError:
        raise StoreError(f"{where}: {text[:60]!r} is not a valid value") from None


def _value(name: str, text: str) -> int | float | bool:
    if name in _WHOLE:
        return int(text)
    if name in _REAL:
        return _finite(text)
    if name in _SWITCHES:
        return _switch(text)
    raise KeyError(name)


def check_parameters(given: Mapping[str, object]) -> Values:
    """Check parameters from JSON, and drop those that are null; unknown names stay.

    Raises
    ------
    StoreError
        A value is of the wrong kind.
    """
    checked = {
        name: _check_parameter(name, each) for name, each in given.items() if each is not None
    }
    return cast("Values", checked)


def _check_parameter(name: str, value: object) -> object:
    if name in _TEXTS:
        return _texts(name, value)
    if name in _WHOLE:
        return _whole(name, value)
    if name in _REAL and not _is_number(value):
        raise StoreError(f"parameters.{name}: {str(value)[:60]!r}, needs a number")
    return value


def _whole(name: str, value: object) -> int:
    if _is_number(value) and value == int(value):
        return int(value)
    raise StoreError(f"parameters.{name}: {str(value)[:60]!r}, needs a whole number")


def _is_number(value: object) -> TypeGuard[int | float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


def _texts(name: str, value: object) -> list[str]:
    found = cast("list[object]", value if isinstance(value, list) else [value])
    texts = [each for each in found if isinstance(each, str)]
    if len(texts) < len(found):
        raise StoreError(f"parameters.{name}: {str(found)[:60]!r}, needs a string or a list")
    return texts


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(text)
    return value


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _commands(text: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield line, upper-case command, word and value; a quoted value may have several lines.

    The word is empty for most commands. Only a newline ends a line: other line breaks may be in a
    text.
    """
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    commands = _command_follows(lines)
    after = 0
    for at, line in enumerate(lines):
        if at < after or not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"Modelfile: line {at + 1}"
        command, rest = _first_word(line)
        command, word = command.upper(), ""
        if command not in _ONE and command not in _WITH_WORD:
            raise StoreError(f"{where}: {command[:40]!r} is not a command")
        if command in _WITH_WORD:
            word, rest = _first_word(rest)
        lines[at] = rest
        value, after = _value_from(lines, at, commands, where)
        if not value:
            raise StoreError(f"{where}: {command} has no value")
        yield at + 1, command, word, _unquote(value)


def _first_word(text: str) -> tuple[str, str]:
    found = _WORD.fullmatch(text)
    return (found[1], found[2]) if found else ("", "")


def _value_from(lines: list[str], begin: int, commands: list[bool], where: str) -> tuple[str, int]:
    """Return the value that begins with a line, and the number of the line after it.

    As in Ollama, a quoted text ends where a line does. It goes on if the next line is not a
    command, which no file of Ollama's has: so a text may have lines that end in quotation marks.
    """
    first = lines[begin].strip()
    mark = next((mark for mark in ('"""', '"') if first.startswith(mark)), None)
    if mark is None:
        return first, begin + 1
    # The first possible end, unless a command follows a later one.
    end = 0
    for after in range(begin + 1, len(lines) + 1):
        last = lines[after - 1].strip()
        if last.endswith(mark) and (after > begin + 1 or len(last) >= 2 * len(mark)):
            end = end or after
            if commands[after]:
                end = after
                break
    if not end:
        raise StoreError(f"{where}: no closing {mark}")
    return "\n".join(lines[begin:end]).strip(), end


def _command_follows(lines: list[str]) -> list[bool]:
    """Return for each line whether a command or the end comes next, after blank lines."""
    found = [True] * (len(lines) + 1)
    for at in reversed(range(len(lines))):
        blank = not lines[at].strip()
        found[at] = found[at + 1] if blank else _BEGINS.match(lines[at]) is not None
    return found


def _unquote(text: str) -> str:
    for mark in ('"""', '"'):
        if len(text) >= 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            return text[len(mark) : -len(mark)]
    return text


def write_modelfile(made: Modelfile) -> str:
    """Write a Modelfile, which parses to the same."""
    lines = [f"FROM {made.base}"]
    lines += [f"FROM {made.projector}"] if made.projector is not None else []
    lines += [f"ADAPTER {path}" for path in made.adapters]
    if made.template is not None:
        lines.append(f"TEMPLATE {_quote(made.template)}")
    if made.system is not None:
        lines.append(f"SYSTEM {_quote(made.system)}")
    for name, value in made.parameters.items():
        for each in value if isinstance(value, list) else [value]:
            lines.append(f"PARAMETER {name} {_parameter(each)}")
    lines += [f"MESSAGE {role} {_quote(said)}" for role, said in made.messages]
    lines += [f"LICENSE {_quote(text)}" for text in made.licenses]
    return "\n".join(lines) + "\n"


def _parameter(value: object) -> str:
    return _quote(value) if isinstance(value, str) else str(value).lower()


def _quote(text: str) -> str:
    return f'"""{text}"""' if "\n" in text or '"' in text else f'"{text}"'
