"""Running jobs are found, reached, asked what they do, and told to do otherwise."""
