"""What is kept and shown of a batch: its folder, its record, the page, the table."""
