"""The part that runs in the job: recording, its hooks, the deep trace, and its control socket."""
