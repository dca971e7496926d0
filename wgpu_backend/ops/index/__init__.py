"""Ops that read, write, scatter and convert rows and values by index."""
