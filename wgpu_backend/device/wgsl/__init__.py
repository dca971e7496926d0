"""WGSL modules: composing snippets, and the checks before a driver compiles them."""
