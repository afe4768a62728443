"""Training: LightningModules, their LightningDataModules, and the one loop that runs them."""
