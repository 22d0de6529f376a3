"""Studies written in Python, for notebooks and scripts: what `fl` itself exports.

`run` makes a study of a call (`keys`; its data by `arrays`, the text of its classes by `source`),
plans it by the code that plans files, trains in this process (`training`), and gives a `result`,
which reads what is `stored`. `compare` does so on the tracks.
"""
