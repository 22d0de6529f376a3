"""What the authors of methods, terms, models and tasks import."""
