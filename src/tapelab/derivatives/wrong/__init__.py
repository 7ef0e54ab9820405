"""What TensorFlow's derivatives and kernels get wrong: found in a graph, and cured or refused."""
