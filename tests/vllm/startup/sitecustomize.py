"""Python imports this at every start where this folder is on its path: servers and their workers get the shims too."""

import os

import cpu_runners

cpu_runners.prepare(os.environ)
cpu_runners.wait_long(os.environ)
