"""Exported programs beside other ways to run a model without PyTorch: `make bench-export`."""
