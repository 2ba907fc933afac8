"""Python's side of the C libraries: the interfaces' functions behind the table that C calls."""

from normgrad.capi.bridge.start import start

__all__ = ["start"]
