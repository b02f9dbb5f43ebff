"""Pure functions from tables to tables. They read no files and draw nothing."""
