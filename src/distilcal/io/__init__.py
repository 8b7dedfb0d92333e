"""Files: atomic writes, sealed folders, locks, cached rows, tables, and files of predictions."""
