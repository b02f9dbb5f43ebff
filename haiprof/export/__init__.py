"""Writes what a run tells for other programs."""
