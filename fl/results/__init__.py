"""From runs to tables and analyses."""
