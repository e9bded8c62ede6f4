"""What `emblema stream` does: frames come in, questions are asked of them, answers are printed."""
