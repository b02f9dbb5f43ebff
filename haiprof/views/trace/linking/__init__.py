"""Joins the events of a trace: kernel to launch, to operator, to module, to step."""
