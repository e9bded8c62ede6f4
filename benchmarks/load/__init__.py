"""Load of the three servers and of the embedded engine: requests, a runner that times them, and the page of figures."""
