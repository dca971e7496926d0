"""Adapters, devices, buffers, pipelines and programs: the only package that imports wgpu."""
