"""What TensorFlow and Keras should mend, ready to send: a page for each fault of `faults.toml`, and their list.

`make ARGS=--upstream audit` runs the programs and finds the cures; `make ARGS=--page audit` writes the pages.
"""
