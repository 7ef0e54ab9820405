"""What a call is given: nested arguments as flat lists, what stands beside tensors, and the context of the call."""
