"""Where tables come from: one module per origin. None of them knows how the tables are used."""
