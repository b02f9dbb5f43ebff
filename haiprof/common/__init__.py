"""What every part uses: places, files, processes, numbers and messages."""
