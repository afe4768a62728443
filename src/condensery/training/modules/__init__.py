"""The LightningModules: one for each pre-training method and each fine-tuning method."""
