"""Programs for maintainers: they write the generated pages and tables of docs/."""
