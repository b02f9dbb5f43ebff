"""Sentences: what the figures mean, in words, for the headline and the report."""
