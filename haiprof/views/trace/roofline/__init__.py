"""Operators, multiplications and collectives against what the device can do at most."""
