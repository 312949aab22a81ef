"""Pages: HTML that needs no network."""
