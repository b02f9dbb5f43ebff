"""Why devices and streams were idle, as disjoint intervals that sum to the idle time."""
