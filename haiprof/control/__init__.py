"""Finds running jobs, reaches them, queries them and changes what they record."""
