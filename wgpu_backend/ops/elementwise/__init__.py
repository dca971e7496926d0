"""Elementwise ops, and the fusion of chains of them into one kernel."""
