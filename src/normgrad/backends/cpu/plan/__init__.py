"""From a request to a parameter block: how data lie, which schedule, which partition."""


def ceil_div(value: int, by: int) -> int:
    """Rounded up."""
    return -(-value // by)
