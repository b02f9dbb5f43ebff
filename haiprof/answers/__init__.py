"""Questions to a run that take several views and processes together."""
