"""Training data: batches as a function of the step, and the LightningDataModules that use them."""
