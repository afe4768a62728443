"""LED (Zhang et al. 2023): a loss that also follows the order of a lexical teacher."""
