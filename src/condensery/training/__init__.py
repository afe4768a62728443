"""Training: LightningModules, the LightningDataModules that they share, and the one loop that runs them."""
