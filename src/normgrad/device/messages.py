"""The sentence for each thread's last failure."""

import threading


class _Recent(threading.local):
    text = ""


_RECENT = _Recent()


def record(text: str) -> None:
    """Keep the sentence of a failure."""
    _RECENT.text = text


def recent() -> str:
    """The calling thread's last sentence; empty before the first failure."""
    return _RECENT.text
