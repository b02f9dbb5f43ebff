"""Reads the memory timelines of torch.profiler (``export_memory_timeline``)."""
