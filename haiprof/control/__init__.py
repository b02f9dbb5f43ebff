"""Reaching jobs that run: from outside, without their having been prepared for it."""
