"""The longest chain of dependent work through a window of a trace."""
