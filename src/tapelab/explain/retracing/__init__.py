"""Why a `tf.function` was traced again, from the traces that TensorFlow keeps."""
