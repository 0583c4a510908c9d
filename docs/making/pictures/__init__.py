"""Pictures of the documentation, drawn by qkv itself: ``python docs/making/draw.py FOLDER``."""
