"""What a function reads from outside its arguments, and whose code that is."""
