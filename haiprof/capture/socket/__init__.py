"""The job's end of the control socket: answers requests from outside."""
