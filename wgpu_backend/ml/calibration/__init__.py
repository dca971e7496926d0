"""Measure and test a device once, and keep the results."""
