"""Measuring: generated tasks whose answers can be checked, metrics, tables and plots."""
