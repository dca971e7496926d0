"""Ops of one value after another, and how chains of them become one kernel."""
