"""BERT + NLI (Reimers and Gurevych 2019): a sentence encoder trained on NLI pairs.

It learns to label a pair of sentences as entailment, contradiction or neutral.
"""
