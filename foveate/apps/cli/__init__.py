"""The command line."""

from foveate.cli.main import COMMANDS, Command, main

__all__ = ["COMMANDS", "Command", "main"]
