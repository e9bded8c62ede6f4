"""Reuse on a decoder where most layers keep a state: another method beside it, and the page of results.

hypic: another method, run by the stock decoder. run: what is measured. page: tables and plot.
"""
