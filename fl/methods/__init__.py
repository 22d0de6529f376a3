"""Federated-learning methods: one file per paper, named as the paper names it."""
