"""Going further: values that look right."""
