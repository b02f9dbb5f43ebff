"""Brings together what each host recorded into a folder of its own: one run is one folder again."""
