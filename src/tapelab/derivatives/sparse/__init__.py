"""Sparse Jacobians and Hessians: where the entries are, and all of them by a few products.

`dependence`   of each element of a tensor, the elements of the sources that it depends on
`rules`        how that goes through an operation; `products`, `stencils` and `lists` have those of a kind
`pattern`      from a traced function to the pattern of its Jacobian or Hessian
`colouring`    which columns or rows share a product
`recipes`      the transforms
"""
