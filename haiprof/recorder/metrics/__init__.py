"""Exports the figures of a node while its job runs: to Prometheus, by OTLP; only on request."""
