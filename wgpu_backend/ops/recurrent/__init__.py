"""Ops of recurrent layers: short convolutions and scans."""
