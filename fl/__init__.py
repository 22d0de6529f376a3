"""Fedloom: federated-learning studies, from data to published tables, that anyone can run again."""
