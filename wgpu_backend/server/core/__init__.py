"""Shared by all APIs: requests, completions, model pool, schemas and streams."""
