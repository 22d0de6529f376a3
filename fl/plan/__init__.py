"""From config files to runs: what the user wrote, checked and with every default filled in."""
