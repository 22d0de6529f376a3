"""Building blocks of data sets: readers of files and folders in common formats."""
