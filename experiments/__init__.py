"""Runs, decoding, scoring and tables, configured by Hydra: ``python -m experiments.run``."""
