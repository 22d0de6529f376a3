"""From runs to plans and jobs: what is there already, what is to be done, what it will cost."""
