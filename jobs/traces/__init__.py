"""Job traces of other clusters and of our own, read into one `Trace`.

`read(path)` looks at the file's first line and chooses the layout. A bad row is counted and quoted with its line
number; it never stops the reading and never vanishes without a word.
"""
