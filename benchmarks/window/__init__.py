"""Window benchmarks: the tables of Kamera section 5 and appendix D, and an agent's trace."""
