"""The command line: one module for each group of commands, each command calls one function of the library."""
