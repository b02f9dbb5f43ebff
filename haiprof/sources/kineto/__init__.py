"""Traces of torch.profiler (Kineto): found, read once, and written as the tables of a run."""
