"""The HTTP APIs: one package or file for each API."""
