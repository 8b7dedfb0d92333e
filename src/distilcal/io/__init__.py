"""Files: written aside and renamed, tables of text, files of predictions, the store of what is already computed."""
