"""Continuous batching: requests join and leave the batch between steps.

::

    submit ─▶ queue ─ admit ─▶ Completion in a slot ─ plan ─▶ one pass for all ─ read ─▶ Event

`engine.py` has the public class, `core.py` its thread. ``request.py`` and ``results.py`` have the
inputs and outputs, `generation.py` the caller's handle. `loop.py` divides a step among requests,
`step.py` submits and reads it, and `constrained.py` samples under grammars. `prefix_cache.py` finds
cached prefixes, and `drafts.py` does speculative decoding. The streams of sessions run on the same
loop, with one slot each; see ``engine/sessions.py``.
"""
