"""Exports of Nsight Systems (``nsys export --type sqlite``): found, and written as the tables."""
