"""DPR-PAQ (Oğuz et al. 2022): a bi-encoder is pre-trained on generated questions and their passages, such as PAQ's."""
