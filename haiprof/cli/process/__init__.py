"""How a command deals with its terminal, its children and its workers."""
