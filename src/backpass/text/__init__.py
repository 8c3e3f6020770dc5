"""Text for people: tables, Markdown, and lines that fit a terminal."""
