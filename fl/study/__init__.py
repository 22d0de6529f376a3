"""From config files to runs: what the user wrote, checked and settled down to the last default."""
