"""What is dropped without being closed says so, as files do."""

from __future__ import annotations

import warnings


class Unclosed:
    """Warns when it goes and nobody called `silence`; kept by what is to be closed.

    It is an object of its own since it is in no reference cycle, so that it goes with its keeper,
    and finds nothing half taken apart.

    Parameters
    ----------
    what : str
        Of its keeper: the kind, and the file or device by name.
    *parts : object
        Whose own warnings are silenced: the keeper closes them.
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
        """Say nothing: the keeper was closed, or belongs to somebody who says it."""
        self._silent = True
