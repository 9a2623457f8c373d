"""Measurement: how much of the text comes back, against baselines, with intervals."""
