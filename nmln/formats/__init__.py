"""Text, triples and graphs to worlds, and back."""
