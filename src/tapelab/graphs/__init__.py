"""What a traced program is: what is known of each operation, and what a program does to the examples of a batch."""
