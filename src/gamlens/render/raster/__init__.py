"""Pictures: maps over photos, grids of panels and charts, drawn with numpy and Pillow."""
