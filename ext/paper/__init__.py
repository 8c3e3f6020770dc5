"""The book as one PDF: the pages of the built site, written in typst's markup.

The source is the site and not the chapters, because a page of the site has everything that paper needs in its final
form: what the cells returned, Sphinx's numbers, the targets of links, the docstrings and the bibliography.

| module | what it does |
|---|---|
| `pages` | the parts and chapters of the book, and a page without what paper cannot show |
| `writer` | a page in typst's markup |
| `tables` | a table of a page, in a size that fits |
| `formulas` | every formula, converted from LaTeX by pandoc |
| `terms` | the terms of the index, and where they stand |
| `book.typ` | how it looks |
"""


class PaperError(Exception):
    """What paper cannot show, with the chapter that has it."""
