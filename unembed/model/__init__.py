"""The inverter itself: diffusion process, denoiser, training and the artefact on disk."""
