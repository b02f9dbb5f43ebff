"""What runs in the job: recording, its hooks, the deep trace, and the socket it answers on."""
