"""Sentences: what the figures mean, for the headline and the report."""
