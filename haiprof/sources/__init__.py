"""Where tables come from: one module per origin. None of them knows what is asked of the tables."""
