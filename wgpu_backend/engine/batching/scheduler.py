"""How the tokens of a step are shared among requests. Numbers only."""

from __future__ import annotations

from collections.abc import Sequence


def fair_shares(wanted: Sequence[int], budget: int) -> list[int]:
    """Share a budget equally; what one does not need goes to the others.

    So a short prompt is read in its first step, however long those beside it are. Where there is
    less than a token for each, the first get one.

    Parameters
    ----------
    wanted : sequence of int
        What each could take, first come first.
    budget : int

    Returns
    -------
    list of int
        As much as is wanted, or less; never more than the budget together.
    """
    given = [0] * len(wanted)
    # Who wants least first; of equals the last, so that what cannot be divided goes to the first.
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], -i))
    for place, i in enumerate(order):
        given[i] = min(wanted[i], budget // (len(order) - place))
        budget -= given[i]
    return given


def steady_shares(prompts: Sequence[int], answers: Sequence[int], budget: int) -> list[int]:
    """Tokens of a step that has prompts alone, or answers alone.

    What is computed of a token then never depends on who is beside it: a prompt is always read in
    passes of prompts, what was made always in steps. Prompts come first, since nothing can be made
    of them before.

    Parameters
    ----------
    prompts, answers : sequence of int
        Tokens of each that wait to be read as part of a prompt, and as part of an answer.
    budget : int
        Tokens of a pass over prompts.
    """
    if any(prompts):
        return fair_shares(prompts, budget)
    return [min(count, 1) for count in answers]


def step_shares(pending: Sequence[int], budget: int) -> list[int]:
    """Tokens that each request computes in a step.

    A request that makes tokens has one pending, which it always gets, so that it never waits for
    those that still read their prompts; these share what is left. Where some prompts end in the
    step, whose first tokens wait for it, longer ones have less, and the step is half as long.

    Parameters
    ----------
    pending : sequence of int
        Tokens of each that are not computed yet; 0 for one that cannot go on now.
    budget : int
        Tokens of a step.
    """
    making = [count if count == 1 else 0 for count in pending]
    given = fair_shares(making, budget)
    reading = [count if count > 1 else 0 for count in pending]
    for i, count in enumerate(_brief_shares(reading, budget - sum(given), budget // 2)):
        given[i] += count
    return given


def _brief_shares(reading: Sequence[int], budget: int, spared: int) -> list[int]:
    """Share a budget equally; `spared` less where some end, if those leave as much."""
    given = fair_shares(reading, budget)
    ending = [count if count == given[i] else 0 for i, count in enumerate(reading)]
    longer = [0 if count else reading[i] for i, count in enumerate(ending)]
    left = budget - sum(ending) - spared
    if not any(ending) or left < 1:
        return given
    return [a + b for a, b in zip(ending, fair_shares(longer, left), strict=True)]
