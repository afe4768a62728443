"""SimLM (Wang et al. 2023): replaced language modelling in an encoder, and in a shallow decoder that reads its CLS vector."""
