"""Figures as other tools define them, where those differ from ours."""
