"""Attention: over a paged cache, over plain keys, and with the rotation before it."""
