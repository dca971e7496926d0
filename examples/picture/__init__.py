"""Shared parts of the examples with a window: the window, and colours."""
