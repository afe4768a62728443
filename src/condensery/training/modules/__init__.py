"""The LightningModules: one for each way to pre-train and to fine-tune."""
