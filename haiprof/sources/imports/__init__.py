"""Traces of other tools, written once as a run of haiprof: what is the same for all of them."""
