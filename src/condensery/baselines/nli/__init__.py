"""BERT + NLI (Reimers and Gurevych 2019): a sentence encoder trained to label pairs as entailment, contradiction or neutral."""
