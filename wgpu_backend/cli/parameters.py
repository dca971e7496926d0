"""Sampling and other parameters: the table of the options of `run` and `/set parameter`.

It repeats the ranges and defaults of the engine's `SamplingOptions`, so that the help can be made
without importing NumPy; a test compares the two.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from wgpu_backend.cli.failures import brief
from wgpu_backend.errors import OptionError

# Block tables are allocated for all positions, so a typing error must not exhaust memory.
MAX_CONTEXT = 1 << 24
# A limit as high as this is shown as none.
_ENDLESS = 1 << 24

Value = int | float | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of answers.

    Parameters
    ----------
    name : str
        Name in a chat; the option is spelled with hyphens.
    kind : str
        ``whole`` or ``real`` numbers, or ``texts``.
    low, high : int or float
        Smallest and largest value of a number.
    default : int, float, tuple or None
        Default value; None if another part decides.
    """

    name: str
    kind: Literal["whole", "real", "texts"]
    low: float
    high: float
    default: Value | None
    help: str

    @property
    def option(self) -> str:
        """Name of the option on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def needs(self) -> str:
        """Description of valid values, for messages."""
        if self.kind == "texts":
            return "at least one character"
        return f"a {'whole ' if self.kind == 'whole' else ''}number from {self.low} to {self.high}"

    @property
    def range(self) -> str:
        """Range of values, for the help."""
        if self.kind == "texts":
            return "texts"
        return f"{self.low} to {self.high}" if self.high < _ENDLESS else f"{self.low} or more"

    @property
    def help_text(self) -> str:
        """Help text with the range and the default."""
        if self.kind == "texts":
            return self.help
        default = "" if self.default is None else f"; default {self.default}"
        return f"{self.help} [{self.range}{default}]"

    def number(self, text: str, label: str = "") -> float:
        """Parse a number that a user typed.

        Parameters
        ----------
        label : str
            Name for messages; the parameter's name if empty.

        Raises
        ------
        OptionError
            It is not a number, or out of range.
        """
        kind = int if self.kind == "whole" else float
        try:
            # int() also takes 1_000 and digits of other scripts.
            value = kind(text if text.isascii() and "_" not in text else "no number")
        except ValueError:
            value = math.nan
        if not self.low <= value <= self.high:
            # Written so that NaN, which compares as false, is refused.
            raise OptionError(f"{label or self.name}: {brief(text)}, needs {self.needs}")
        return value

    def texts(self, words: Sequence[str], label: str = "") -> tuple[str, ...]:
        """Check texts that a user typed.

        Raises
        ------
        OptionError
            A text is empty.
        """
        if not all(words):
            raise OptionError(f"{label or self.name}: '', needs {self.needs}")
        return tuple(words)


_TABLE = (
    Parameter("temperature", "real", 0, 100, 0.8,
              "Sampling temperature; 0 always takes the most likely token."),
    Parameter("top_k", "whole", 0, _ENDLESS, 40,
              "Sample from this many likeliest tokens; 0 for all."),
    Parameter("top_p", "real", 0, 1, 0.9,
              "Sample from the likeliest tokens of this total probability."),
    Parameter("min_p", "real", 0, 1, 0.0, "Least probability relative to the likeliest token."),
    Parameter("typical_p", "real", 0, 1, 1.0,
              "Sample from the most typical tokens of this total probability."),
    Parameter("repeat_penalty", "real", 0.01, 100, 1.0,
              "Penalty of recent tokens; above 1 makes them rarer."),
    Parameter("repeat_last_n", "whole", -1, _ENDLESS, 64,
              "Recent tokens that penalties apply to; -1 for all."),
    Parameter("presence_penalty", "real", -100, 100, 0.0,
              "Subtracted from the logits of recent tokens."),
    Parameter("frequency_penalty", "real", -100, 100, 0.0,
              "Subtracted for each recent occurrence of a token."),
    Parameter("dry_multiplier", "real", 0, 100, 0.0,
              "DRY: penalty of repeated sequences; 0 is off."),
    Parameter("dry_base", "real", 0, 100, 1.75, "DRY: growth of the penalty per repeated token."),
    Parameter("dry_allowed_length", "whole", 0, _ENDLESS, 2,
              "DRY: longest repetition without a penalty."),
    Parameter("dry_penalty_last_n", "whole", -1, _ENDLESS, -1,
              "DRY: recent tokens to search; -1 for all."),
    Parameter("dry_sequence_breakers", "texts", 0, 0, ("\n", ":", '"', "*"),
              "DRY: text that ends a repetition; may be given several times."),
    Parameter("xtc_probability", "real", 0, 1, 0.0,
              "XTC: probability of removing the likeliest tokens."),
    Parameter("xtc_threshold", "real", 0, 1, 0.1, "XTC: least probability of removed tokens."),
    Parameter("top_n_sigma", "real", -1, 1000, -1.0,
              "Sample within this many standard deviations of the best logit."),
    Parameter("dynatemp_range", "real", 0, 100, 0.0, "Range of the dynamic temperature; 0 is off."),
    Parameter("dynatemp_exponent", "real", 0, 100, 1.0,
              "Exponent of the entropy for the dynamic temperature."),
    Parameter("mirostat", "whole", 0, 2, 0, "Mirostat version 1 or 2; 0 is off."),
    Parameter("mirostat_tau", "real", 0, 100, 5.0, "Mirostat: target surprise in bits."),
    Parameter("mirostat_eta", "real", 0, 100, 0.1, "Mirostat: learning rate."),
    Parameter("min_keep", "whole", 0, _ENDLESS, 0, "Least tokens that each sampler keeps."),
    Parameter("samplers", "texts", 0, 0, None,
              "Samplers in order, such as top_k;temperature."),
    Parameter("seed", "whole", -1, 2**64 - 1, None, "Seed of the sampler; -1 draws one."),
    Parameter("num_predict", "whole", -1, _ENDLESS, -1,
              "Most tokens to generate; -1 for no limit."),
    Parameter("stop", "texts", 0, 0, (), "Text that ends the answer; may be given several times."),
    Parameter("num_ctx", "whole", 1, MAX_CONTEXT, None, "Size of the context in tokens."),
)  # fmt: skip
PARAMETERS = {parameter.name: parameter for parameter in _TABLE}
# Parameters of the sampler; the others belong to the engine and the model.
SAMPLING = tuple(p.name for p in _TABLE if p.name not in ("num_predict", "stop", "num_ctx"))


def options() -> list[inspect.Parameter]:
    """Make the options of a command for answers; `num_ctx` is an option of loading a model."""
    return [_make_option(parameter) for parameter in _TABLE if parameter.name != "num_ctx"]


def _make_option(parameter: Parameter) -> inspect.Parameter:
    number, several = parameter.kind != "texts", list[str] | None
    option = typer.Option(
        parameter.option,
        metavar="NUMBER" if number else "TEXT",
        help=parameter.help_text,
    )
    # Text, so that `number` checks it: its message names the range, as in a chat.
    kind = Annotated[str | None, option] if number else Annotated[several, option]
    return inspect.Parameter(
        parameter.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=kind
    )


def parse_parameters(**given: str | list[str] | None) -> Mapping[str, Value]:
    """Parse the values of the given options.

    Raises
    ------
    OptionError
        A value is invalid.
    """
    return {
        name: PARAMETERS[name].number(words, PARAMETERS[name].option)
        if isinstance(words, str)
        else PARAMETERS[name].texts(words, PARAMETERS[name].option)
        for name, words in given.items()
        if words is not None
    }
