"""Reads what rocprofv3 writes about a process on AMD GPUs: ``*_results.json``, or its CSV files."""
