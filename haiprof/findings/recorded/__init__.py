"""Findings about a run that haiprof recorded: rules over the ledger, stacks, samples and facts."""
