"""Attention over a paged cache and over plain keys, alone or fused with the rotation before it."""
