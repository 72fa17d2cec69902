"""Flower and Ray on a machine that is busy with other tests."""

SLOW_STARTS = (
    "Failed to start local SuperLink within",
    ", in init_ray",
    "The current node timed out during startup",
)
"""Words of Flower or Ray where a start took too long: a SuperLink's 15 seconds, or those of a helper of Ray's node.

Neither has a setting. `init_ray` of Flower's engine is what fails then, in a traceback. A user types the command again.
"""


def where_it_starts(do, times=3):
    """Return the result of `do(attempt)`, tried again where a start took too long."""
    for attempt in range(times - 1):
        try:
            return do(attempt)
        except Exception as error:
            if not any(words in str(error) for words in SLOW_STARTS):
                raise
    return do(times - 1)
