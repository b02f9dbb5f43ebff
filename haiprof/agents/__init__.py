"""What programs that act on their own ask of runs: tools of the Model Context Protocol."""
