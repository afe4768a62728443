"""The LightningModules: one for each method of pre-training and of fine-tuning."""
