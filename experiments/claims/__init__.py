"""What is claimed of query-key normalisation, measured: :mod:`experiments.claims.__main__`."""
