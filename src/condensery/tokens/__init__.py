"""Texts as token ids: the tokenizer, the store, spans, masks and padded or packed batches."""
