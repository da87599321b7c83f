"""Rounds compared: a session with the target alone, a foreign trace with the rules, block-wide rows with single ones."""
