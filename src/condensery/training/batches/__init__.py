"""The batch of a step, as a function of the step: spans, pairs, triples, lists."""
