"""Reductions, scans and norms along axes."""
