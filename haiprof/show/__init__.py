"""Results drawn: for the notebook, the terminal and the one-file HTML report."""
