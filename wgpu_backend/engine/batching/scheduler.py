"""The division of a step's tokens among requests. Pure functions of numbers."""

from __future__ import annotations

from collections.abc import Sequence


def fair_shares(wanted: Sequence[int], budget: int) -> list[int]:
    """Divide a budget equally; requests get what others do not need.

    So a short prompt is read in its first step, however long the other prompts are. If there is
    less than a token for each, the first requests get one.

    Parameters
    ----------
    wanted : sequence of int
        Tokens that each request could take, in order of arrival.

    Returns
    -------
    list of int
        Tokens of each request, at most `wanted`; their sum is at most the budget.
    """
    given = [0] * len(wanted)
    # Smallest demand first; the last of equal ones first, so that the remainder goes to the first.
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], -i))
    for place, i in enumerate(order):
        given[i] = min(wanted[i], budget // (len(order) - place))
        budget -= given[i]
    return given


def steady_shares(prompts: Sequence[int], answers: Sequence[int], budget: int) -> list[int]:
    """Divide a step that has either prompts only, or answers only.

    A token's result then does not depend on the other requests in the batch: prompts are always
    read in prompt passes, generated tokens always in decode steps. Prompts come first, since their
    requests cannot generate tokens before.

    Parameters
    ----------
    prompts, answers : sequence of int
        Pending tokens of each request that belong to a prompt, and to an answer.
    budget : int
        Most tokens of a prompt pass.
    """
    if any(prompts):
        return fair_shares(prompts, budget)
    return [min(count, 1) for count in answers]


def step_shares(pending: Sequence[int], budget: int) -> list[int]:
    """Divide a step between requests that generate tokens and requests that read prompts.

    A generating request has one pending token and always gets it, so it never waits for prompts.
    Prompts share the rest. If some prompts end in this step, longer ones get less and the step is
    half as long, so that the first tokens of the former arrive sooner.

    Parameters
    ----------
    pending : sequence of int
        Pending tokens of each request; 0 for one that must wait.
    budget : int
        Most tokens of a step.
    """
    if len(pending) == 1:
        return [min(pending[0], budget)]
    making = [count if count == 1 else 0 for count in pending]
    given = fair_shares(making, budget)
    reading = [count if count > 1 else 0 for count in pending]
    for i, count in enumerate(_brief_shares(reading, budget - sum(given), budget // 2)):
        given[i] += count
    return given


def _brief_shares(reading: Sequence[int], budget: int, spared: int) -> list[int]:
    """Divide a budget equally; spend `spared` less if some prompts end and leave that much."""
    given = fair_shares(reading, budget)
    ending = [count if count == given[i] else 0 for i, count in enumerate(reading)]
    longer = [0 if count else reading[i] for i, count in enumerate(ending)]
    left = budget - sum(ending) - spared
    if not any(ending) or left < 1:
        return given
    return [a + b for a, b in zip(ending, fair_shares(longer, left), strict=True)]
