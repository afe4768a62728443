"""The LightningDataModules, which do all sampling."""
