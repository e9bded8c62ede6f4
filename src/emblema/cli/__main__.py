"""`python -m emblema.cli`."""

from emblema.cli import main

main()
