"""Model architectures, found by listing this folder; related models share a file.

A file reads like the paper. Base classes for your own models are exported here.
"""

from .llama import Llama

__all__ = ["Llama"]
