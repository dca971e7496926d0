"""The commands of `wgpu-backend`, one file each, with their options and their output.

All of these files are imported for `--help`. Modules that load NumPy, the engine or the server
are therefore imported in the functions that need them.
"""
