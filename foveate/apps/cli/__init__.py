"""The command line."""

from foveate.apps.cli.main import COMMANDS, Command, main

__all__ = ["COMMANDS", "Command", "main"]
