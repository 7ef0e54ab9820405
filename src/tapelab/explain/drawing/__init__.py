"""What a tape recorded, as a picture and as a table."""
