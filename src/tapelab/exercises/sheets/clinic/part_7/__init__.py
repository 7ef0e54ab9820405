"""Going further: the second derivative."""
