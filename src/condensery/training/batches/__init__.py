"""What a step reads, as a function of the step: spans, pairs, triples, lists."""
