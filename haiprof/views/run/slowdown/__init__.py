"""How much faster steps were without a cause: their operations, replayed with some repaired."""
