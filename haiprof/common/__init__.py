"""The ground that every part stands on: places, files, processes, numbers, and what to say."""
