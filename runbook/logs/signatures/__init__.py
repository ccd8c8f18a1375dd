"""What a line means: signature documents, made ready for searching."""
