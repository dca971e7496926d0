"""Architectures; kin share a file, which reads like their papers. Found by listing the folder.

What a model of one's own may inherit from, too, has a name here.
"""

from .llama import Llama

__all__ = ["Llama"]
