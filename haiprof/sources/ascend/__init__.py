"""Reads what torch_npu's profiler and msprof write about a process on Ascend NPUs."""
