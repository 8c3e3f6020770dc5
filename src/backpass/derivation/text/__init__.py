"""The displays of a text: find them, split them into statements, and judge these."""
