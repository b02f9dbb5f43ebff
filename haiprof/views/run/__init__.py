"""Tables of a recorded run."""
