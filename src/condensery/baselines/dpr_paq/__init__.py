"""DPR-PAQ (Oğuz et al. 2022): a bi-encoder is pre-trained on generated questions (such as PAQ's) and their passages."""
