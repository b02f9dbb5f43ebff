"""The commands of haiprof: one file each."""
