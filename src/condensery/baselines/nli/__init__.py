"""BERT + NLI (Reimers and Gurevych 2019): a sentence encoder trained to tell entailment, contradiction and neither apart."""
