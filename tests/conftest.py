"""What all tests share."""

from fixtures import away_from_the_checkout, native_build, shm
from hypothesis import settings

__all__ = ["away_from_the_checkout", "native_build", "shm"]

# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
