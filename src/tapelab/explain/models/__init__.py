"""What is the matter with the gradients of a whole Keras model: for one batch, or while `fit` runs."""
