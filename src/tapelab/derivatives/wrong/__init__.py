"""What TensorFlow's derivatives and kernels get wrong: found in a graph, and refused or warned of."""
