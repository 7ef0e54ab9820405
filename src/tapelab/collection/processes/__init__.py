"""What processes leave behind, and how they end: guards, folders for the time of a run, signals."""
