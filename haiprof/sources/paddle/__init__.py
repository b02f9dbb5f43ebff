"""Worker logs of Paddle's job scheduler → tables of contract 2."""
