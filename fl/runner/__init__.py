"""Computing runs so that an interruption loses little: watched, checkpointed, resumed."""
