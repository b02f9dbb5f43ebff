"""What an operator must compute and move, from the shapes and types of its inputs."""
