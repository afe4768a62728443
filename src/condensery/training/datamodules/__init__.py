"""The LightningDataModules, which own the sampling."""
