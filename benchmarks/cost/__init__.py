"""What each step of a linked request costs, over prefilling it again and over copying its bytes, in one run."""
