"""ANCE (Xiong et al. 2021): hard negatives that are mined again from the current weights while training goes on."""
