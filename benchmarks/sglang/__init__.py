"""What is measured of SGLang with the plugin."""
