"""What a server may make of uploads in place of their mean, one file each."""
