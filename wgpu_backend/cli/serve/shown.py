"""The options of what `serve` shows to clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer


@dataclass(frozen=True, slots=True)
class Shown:
    """The options of what clients see of the server."""

    no_slots: Annotated[bool, typer.Option("--no-slots", help="Disable the slots endpoint.")] = (
        False
    )
    no_metrics: Annotated[
        bool, typer.Option("--no-metrics", help="Disable metrics for Prometheus.")
    ] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Return each chat's prompt with its answer.")
    ] = False
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Refuse fields and options that are not known."),
    ] = False
    no_page: Annotated[
        bool, typer.Option("--no-page", "--no-ui", help="Have no page for browsers.")
    ] = False

    def settings(self, prefix: str) -> dict[str, Any]:
        """Return the server's settings; the page works only at the root, without a prefix."""
        shown = {
            "slots": not self.no_slots,
            "metrics": not self.no_metrics,
            "page": not self.no_page and not prefix,
            "verbose": self.verbose,
        }
        return {
            "shows": frozenset(name for name, on in shown.items() if on),
            "strict": self.strict,
        }
