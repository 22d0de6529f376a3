"""What a data set asks of a model, one file each."""
