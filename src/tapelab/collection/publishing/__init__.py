"""What people open: notebooks from their sources, generated pages, the learner's copies, the site."""
