"""Going further: time and memory."""
