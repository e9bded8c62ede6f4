"""What is learnt behind the answers: patches formed, pieces made, lanes held against re-prefill."""
