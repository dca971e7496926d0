"""Many requests at once: they join and leave the batch between steps.

::

    submit ─▶ queue ─ admit ─▶ Completion in a slot ─ plan ─▶ one pass for all ─ read ─▶ Event

`engine.py` is the whole, `core.py` its thread. ``request.py`` and ``results.py`` are what goes in
and comes out, `generation.py` what a caller holds meanwhile. `scheduler.py` shares a step among
requests; `step.py` runs it, and `constrained.py` chooses among what grammars allow;
`prefix_cache.py` finds what was computed before, `drafts.py` guesses what comes next.
"""
