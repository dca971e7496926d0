"""The choice of where to sample, on the device or the host; options alone decide."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from wgpu_backend.ops.sampling.host.options import SamplingOptions

Kind = Literal["greedy", "gpu", "host"]
# A recorded graph serves every value up to its size, so that few graphs are recorded.
CANDIDATES = (1, 64, 256)
HISTORY = (0, 64, 256, 1024)


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of the graph that samples on the device, or the note that the host has to.

    Parameters
    ----------
    kind : str
        ``greedy`` and ``gpu`` run on the device; ``host`` needs the logits read back.
    candidates : int
        Largest logits the device looks at: 1, 64 or 256.
    history : int
        Past tokens the device is given: 0, 64, 256 or 1024.
    """

    kind: Kind
    candidates: int
    history: int

    @classmethod
    def merge(cls, plans: Iterable[Plan]) -> Plan:
        """Return a plan that serves several sequences at once; the host's if one needs the host."""
        plans = list(plans)
        if any(p.kind == "host" for p in plans):
            return HOST
        candidates = max(p.candidates for p in plans)
        kind: Kind = "greedy" if candidates == 1 else "gpu"
        return cls(kind, candidates, max(p.history for p in plans))


HOST = Plan("host", 0, 0)


def plan(options: SamplingOptions) -> Plan:
    """Return the plan for one sequence: on the device unless the options need the host.

    The host is needed for a chain of samplers, for typical_p, for sampling from more than 256
    candidates, and for penalties that look back further than 1,024 tokens.
    """
    if options.chained:
        return HOST
    wanted = 1 if options.greedy else options.top_k
    if wanted == 0 or wanted > CANDIDATES[-1]:
        return HOST
    # No kernel orders candidates by how typical they are.
    if options.typical_p < 1 and not options.greedy:
        return HOST
    history = options.repeat_last_n if options.penalised else 0
    if history < 0 or history > HISTORY[-1]:
        return HOST
    candidates = next(n for n in CANDIDATES if n >= wanted)
    return Plan(
        "greedy" if options.greedy else "gpu",
        candidates,
        next(n for n in HISTORY if n >= history),
    )
