"""What every room stands on: what a tape recorded, the learner's own lines, and how an answer is written."""
