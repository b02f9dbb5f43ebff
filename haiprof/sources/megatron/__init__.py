"""Pipeline timelines of Megatron's tracer → tables of contract 2."""
