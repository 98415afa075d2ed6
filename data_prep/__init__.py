"""From a pair's bitext to the binarised set that fairseq trains on: ``python -m data_prep``."""
