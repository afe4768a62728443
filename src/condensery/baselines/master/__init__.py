"""MASTER (Zhou et al. 2022): MLM, and weak decoders that each recover another text from the CLS vector."""
