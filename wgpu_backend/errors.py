"""The exceptions of the package; each also is the builtin that a caller would guess.

::

    BackendError(Exception)
     ├ ShapeError(ValueError)       operands do not fit together
     ├ DTypeError(TypeError)        an element type is not supported here
     ├ ContextError(ValueError)     tensors of two contexts meet, or one is closed
     ├ ShaderError                  WGSL did not compile, or its interface differs
     ├ DeviceError(RuntimeError)    no adapter, a limit exceeded
     │  ├ DeviceLost                the driver gave the device up; open a new one
     │  ├ NoDeviceLeft              all were lost too often
     │  └ OutOfMemory               carries the memory report
     ├ ModelError(ValueError)       architecture unknown, key or weight missing
     │  └ GGUFError                 the file is damaged or hostile
     ├ TokenizerError(ValueError)   tokenizer unknown or inconsistent
     ├ TemplateError(ValueError)    a chat template failed or exceeded its caps
     ├ OptionError(ValueError)      an option is out of its range
     │  ├ GrammarError              a grammar that cannot be used, or that no token continues
     │  └ MediaError                a picture or sound that is damaged, too large or unknown
     ├ PluginError                  a file of one's own that cannot be imported
     ├ StoreError                   a store of models that cannot do what was asked
     │  └ ModelNotFound             no model of that name
     ├ ContextFull(ValueError)      the prompt is longer than the context
     ├ CacheFull                    no free cache block: wait or shift
     ├ QueueFull                    an engine has as many requests waiting as it may: come again
     └ WorkerLost                   the process that had a model ended: come again
"""

from __future__ import annotations

import warnings


class BackendError(Exception):
    """The base of every error that the package raises on purpose."""


class ShapeError(BackendError, ValueError):
    """Operands whose shapes do not fit together."""


class DTypeError(BackendError, TypeError):
    """An element type that an operation does not support."""


class ContextError(BackendError, ValueError):
    """Tensors of two contexts met in one operation, or a context is closed."""


class ShaderError(BackendError):
    """A WGSL file that does not compile or whose interface differs from its op's."""


class DeviceError(BackendError, RuntimeError):
    """No usable adapter, or a limit of the adapter exceeded."""


class DeviceLost(DeviceError):
    """The driver reset or removed the device; everything on it is gone."""


class NoDeviceLeft(DeviceError):
    """Every usable device was lost too often."""


class OutOfMemory(DeviceError):
    """Device memory ran out.

    Parameters
    ----------
    message : str
        What was asked for, and what there was.
    report : str
        The memory report of the device at that moment, a table for people.
    """

    def __init__(self, message: str, report: str = "") -> None:
        super().__init__(message)
        self.report = report


class ModelError(BackendError, ValueError):
    """A model that cannot be loaded: unknown architecture, missing key or weight."""


class GGUFError(ModelError):
    """A GGUF file that is damaged, truncated or hostile."""


class TokenizerError(BackendError, ValueError):
    """A tokenizer that is unknown or inconsistent."""


class TemplateError(BackendError, ValueError):
    """A chat template that failed or exceeded its caps on size or time."""


class OptionError(BackendError, ValueError):
    """An option that is out of its range or not a number."""


class GrammarError(OptionError):
    """A grammar that cannot be used, or that no token of the vocabulary continues."""


class MediaError(OptionError):
    """A picture or sound that is damaged, truncated, too large or of an unknown format."""


class PluginError(BackendError):
    """A plug-in file that cannot be imported, or registers nothing."""


class StoreError(BackendError):
    """A model store that cannot do a request: a bad name, a full disk, a wrong digest."""


class ModelNotFound(StoreError):
    """A model name that a store or a registry does not have."""


class ContextFull(BackendError, ValueError):
    """A prompt longer than the context.

    Parameters
    ----------
    tokens, room : int or None
        Of the prompt, and what the context holds, where both are known.
    """

    def __init__(
        self, message: str = "", tokens: int | None = None, room: int | None = None
    ) -> None:
        super().__init__(message)
        self.tokens = tokens
        self.room = room


class CacheFull(BackendError):
    """No free cache block is left: wait for a sequence to end, or shift one."""


class QueueFull(BackendError):
    """The engine's queue of waiting requests is full."""


class WorkerLost(BackendError):
    """The model's worker process ended before it answered.

    Parameters
    ----------
    hung : bool
        Whether it was ended because it had answered nothing for too long.
    """

    def __init__(self, message: str, *, hung: bool = False) -> None:
        super().__init__(message)
        self.hung = hung


class Unclosed:
    """An object that emits a ResourceWarning when its owner is collected without `close`.

    The owner keeps it and calls `silence` when it is closed. It is a separate object outside any
    reference cycle, so it is finalised together with its owner.

    Parameters
    ----------
    what : str
        The owner: its kind, and the name of the file or device.
    *parts : object
        Objects that the owner closes; their own warnings are silenced.
    """

    __slots__ = ("_silent", "_what")

    def __init__(self, what: str, *parts: object) -> None:
        self._what = what
        self._silent = False
        for part in parts:
            own = getattr(part, "unclosed", None)
            if isinstance(own, Unclosed):
                own.silence()

    def __del__(self) -> None:
        if not self._silent:
            warnings.warn(
                f"unclosed {self._what}; close it, or use it in a with statement",
                ResourceWarning,
                stacklevel=2,
            )

    def silence(self) -> None:
        """Emit no warning: the owner was closed, or another object closes it."""
        self._silent = True


def describe(value: object) -> str:
    """Format a value and its type for a message, shortened to 60 characters."""
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return f"{shown} ({type(value).__name__})"
