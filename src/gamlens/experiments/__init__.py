"""What the paper shows, and a first page to look at."""
