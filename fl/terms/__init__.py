"""Loss terms that a study can add to any method whose loss is a sum of terms, one file each."""
