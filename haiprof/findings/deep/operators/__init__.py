"""Operators that are slower than their device allows, and why."""
