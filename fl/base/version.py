"""The version, kept apart from code that decides numbers."""

VERSION = "0.1.0"
