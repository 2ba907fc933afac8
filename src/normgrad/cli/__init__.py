"""The command line: one module for each verb."""

from normgrad.cli.main import main

__all__ = ["main"]
