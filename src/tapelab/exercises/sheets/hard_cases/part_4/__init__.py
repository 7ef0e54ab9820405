"""What is compiled, and what is held."""
