"""The command line: one file per verb over shared output."""
