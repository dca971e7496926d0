"""Rotary position embedding: tables, rotation, and what rotates as it writes a cache."""
