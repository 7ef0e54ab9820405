"""Collapsed Taylor mode: values and sums of their derivatives go through a function's graph together, in one pass.

A function is traced once. Its operations are then issued again, one after the other, each with *channels* beside its
values: derivatives along some directions, and sums of higher ones, which cost one channel however many directions are
summed. An operation needs to say only of which kind it is: constant, linear, unary, bilinear, or composed of those
(`rules`). How channels go through a unary and a bilinear operation is one formula each, for all of them: the algebra
(`algebras`, and `higher` for more than two derivatives). What comes out is an ordinary graph, which is compiled, and
differentiated by tapes, like any other.

Sources: R. Li et al., *A computational framework for neural network-based variational Monte Carlo with Forward
Laplacian*, Nature Machine Intelligence 6, 2024; F. Dangel, T. Siebert, M. Zeinhofer and A. Walther, *Collapsing Taylor
mode automatic differentiation*, 2025; A. Griewank and A. Walther, *Evaluating derivatives*, 2008, chapter 13.
"""
