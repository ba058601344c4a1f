"""What a fixed list of commands leaves behind, byte for byte; see `scenario`."""
