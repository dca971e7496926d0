"""Continuous batching: requests join and leave the batch between steps.

::

    submit ─▶ queue ─ admit ─▶ Completion in a slot ─ plan ─▶ one pass for all ─ read ─▶ Event

`engine.py` has the public class, `core.py` its thread. ``request.py`` and ``results.py`` have the
inputs and outputs, `generation.py` the caller's handle. `scheduler.py` divides a step among
requests, `step.py` runs it, and `constrained.py` samples under grammars. `prefix_cache.py` finds
cached prefixes, and `drafts.py` does speculative decoding.
"""
