"""Rows and values by index: read, written, scattered, and in other formats."""
