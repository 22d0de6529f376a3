"""The pieces that methods are composed of."""
