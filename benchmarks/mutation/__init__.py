"""Mutants of the package's algebra, formats and planning, and whether the tests notice them (`make mutation`)."""
