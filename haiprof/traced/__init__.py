"""The questions that a deep trace answers: asked of the Analyzer, told of all ranks."""
