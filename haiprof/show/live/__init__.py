"""What ``haiprof top`` shows: a running job, from the files that its recorder writes."""
