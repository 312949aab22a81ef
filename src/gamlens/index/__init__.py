"""A search index of many images that is kept on disk."""
