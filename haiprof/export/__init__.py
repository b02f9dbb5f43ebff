"""Writes runs in the formats of other programs."""
