"""The keeper's wing: it looks after the notebooks as files. What a notebook imports never imports this."""
