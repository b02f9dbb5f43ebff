"""What delayed the end of a window of a trace, and what less work would save."""
