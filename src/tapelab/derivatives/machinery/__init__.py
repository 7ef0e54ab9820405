"""What every transformation shares: its problem and recipe, how it is planned, compiled, kept and called."""
