"""The recorder: a process beside the job that drains rings, samples the node and writes Arrow."""
