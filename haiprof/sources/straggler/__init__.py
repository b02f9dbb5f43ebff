"""Traces of the straggler study: ``trace-NAME.parquet`` → tables of contract 2."""
