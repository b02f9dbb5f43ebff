"""Recommendations from a deep trace: rules, idle gaps, and the line of code to blame."""
