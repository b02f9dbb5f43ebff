"""Reads what ``nsys stats --format csv`` prints of a report of Nsight Systems."""
