"""Rules by which a server may combine uploads, other than their mean, one file each."""
