"""The curvature of a loss: products with the Gauss-Newton and Fisher matrices, operators over a data set, spectra."""
