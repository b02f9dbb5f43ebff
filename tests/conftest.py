"""What all tests share."""

from fixtures import away_from_the_checkout, native_build, shm

__all__ = ["away_from_the_checkout", "native_build", "shm"]
