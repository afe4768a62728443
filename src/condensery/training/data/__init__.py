"""The data of a training: the batch of a step as a function of the step, and the LightningDataModules around it."""
