"""Why a job is slow, in words, with the evidence and the time there is to be won."""
