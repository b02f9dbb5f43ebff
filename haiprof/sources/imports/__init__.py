"""Writes traces of other tools as a run of haiprof, once: the part that all tools share."""
