"""Questions answered: pure functions from tables to tables. They read no file and draw nothing."""
