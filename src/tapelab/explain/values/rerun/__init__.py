"""What ran, once more: the log as nodes with their values, and the backward pass through them."""
