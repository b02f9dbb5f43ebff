"""Figures as other tools define them, if their definitions differ from ours."""
