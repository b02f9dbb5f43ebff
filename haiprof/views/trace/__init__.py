"""Views of a deep trace: operators, what they launch, and the kernels that ran."""
