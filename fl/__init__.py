"""Fedloom: federated-learning studies, from data to published tables, that anyone can run again."""

__version__ = "0.1.0"
