"""Processes that record are asked what they do, and told to do otherwise (docs/control.md)."""
