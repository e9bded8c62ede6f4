"""How the bundled reference model is trained. Start with `python -m reference.train --help`."""
